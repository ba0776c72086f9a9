"""Whole searches with a budget, by the real manager, ledger and budget, in simulated time: no Ray, no training."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.budget.pace import Pace, SessionTimes
from bigbatch.tune.models.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.runs.confirmation import ConfirmationFacts, missing_confirmations
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.simulate.replay import MemoryKeeper
from bigbatch.tune.simulate.stand_ins import SimulatedClock
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.live_trial import LiveTrial, Over, StudyKeeper
from bigbatch.tune.trials.trial_manager import TrialManager

EPOCHS = 5
BATCHES = (32, 128)
BATCH = "global_batch_size"
SPACE = (
    Dimension(BATCH, CategoricalDistribution(BATCHES)),
    Dimension("x", FloatDistribution(0.0, 1.0)),
)


class ByHand:
    """Configurations of two batches, of which nothing is trained."""

    name = "by hand"

    def new(self, trial: Trial) -> TrainConfig:
        batch = trial.suggest_categorical(BATCH, BATCHES)
        rate = 0.1 + trial.suggest_float("x", 0.0, 1.0)
        keys = {"epochs": EPOCHS, "batch.global_size": batch, "optimizer.peak_lr": rate, "schedule.warmup_epochs": 0.0}
        return TrainConfig().replace_keys(keys)

    def again(self, stored: Mapping[str, object]) -> TrainConfig:
        return TrainConfig.from_dict(dict(stored))


@dataclass
class BudgetedSearch:
    """A search on equal slots of one device each. ``seconds`` is what an epoch of that batch really takes."""

    folder: Path
    limits: Limits
    facts: ConfirmationFacts | None
    slots: int = 2
    owned: bool = True
    seconds: Callable[[int], float] = lambda batch: 10.0
    ray_s: float = 0.0
    start_s: float = 5.0
    end_s: float = 8.0
    expected: SessionTimes = SessionTimes(trial_start_s=0.0)
    """What the budget keeps room for before it has measured anything."""
    trials: int = 10**6
    guess: int = 20
    """How many trials strategies are told."""
    open_ended: bool = False
    stopping: str = "none"
    on_disk: bool = False
    """For searches that another one resumes. A study in memory waits for no disk."""
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    said: list[str] = field(default_factory=list)
    was_spent: bool = False
    busy: dict[str, LiveTrial] = field(default_factory=dict)

    def open(self) -> None:
        self.store = made = self._store()
        self.ledger = ledger = made.ledger
        began = self.clock.now_s
        ledger.hold(self.slots if self.owned else None)
        self.clock.now_s += self.ray_s
        budget = Budget(
            self.limits, Pace(made.study.get_trials(deepcopy=False), self.expected.trial_start_s),
            held_s=lambda: ledger.held_s, devices=lambda: self.slots if self.owned else None,
            clock=self.clock, ending_s=self.expected.ending_s, began=began,
        )  # fmt: skip
        self.budget, facts = budget, self.facts
        reserve = None if facts is None else ConfirmationReserve(facts, EPOCHS)
        objective = Objective(worst=0.1)
        search_facts = SearchFacts(
            SPACE, self.guess, EPOCHS, self.slots, 3, objective, BATCH, open_ended=self.open_ended
        )
        self.manager = TrialManager(
            made,
            make_strategy("random", self.stopping, search_facts),
            ByHand(),
            objective=objective,
            trials=self.trials,
            workers=1,
            observers=[self],  # type: ignore[list-item]
            confirm=None if facts is None else lambda trials: missing_confirmations(trials, facts),
            admission=Admission(budget, 1, reserve),
            clock=self.clock,
        )
        self.manager.recover()

    def _store(self) -> StudyKeeper:
        if not self.on_disk:
            return MemoryKeeper(self.folder, self.clock, Objective(worst=0.1))
        exists = self.folder.exists()
        made = StudyStore.open(self.folder, None) if exists else StudyStore.create(self.folder, "s", {}, None)
        made.ledger.close()
        made.ledger = Ledger(self.folder / "ledger", self.clock)
        return made

    def search_said(self, text: str) -> None:
        """As an observer."""
        self.said.append(text)

    def run(self, until: Callable[[list[FrozenTrial]], bool] = lambda trials: False) -> BudgetedSearch:
        """Until nothing is begun any more, the budget is spent, or the driver is killed: ``until`` is true."""
        self.open()
        ends: list[tuple[float, int, str]] = []
        count = 0
        while not self.was_spent:
            while len(self.busy) < self.slots:
                count += 1
                try:
                    live = self.manager.next_trial(f"t{count}")
                except Over:
                    break
                if live is None:
                    break
                self.busy[f"t{count}"] = live
                heapq.heappush(ends, (self.clock.now_s + self.start_s + self._epoch_s(live), count, f"t{count}"))
            if not ends or until(self.all):
                break
            at, order, name = heapq.heappop(ends)
            self._wait(at)
            if not self.was_spent and self._goes_on(name):
                heapq.heappush(ends, (at + self._epoch_s(self.busy[name]), order, name))
        if not until(self.all):
            self.manager.release()
            self.clock.now_s += self.end_s
        self.busy = {}
        self.ledger.close()
        if isinstance(self.store, StudyStore):
            self.store.close()
        return self

    def _wait(self, at: float) -> None:
        """Tune asks about the budget several times a second."""
        while self.clock.now_s < at and not self.was_spent:
            self.clock.now_s = min(at, self.clock.now_s + 1.0)
            self.was_spent = self.budget.spent() is not None

    def _epoch_s(self, live: LiveTrial) -> float:
        self._next_s = getattr(self, "_next_s", {})
        self._next_s[live.view.number] = self.seconds(live.config.batch.global_size)
        return self._next_s[live.view.number]

    def _goes_on(self, name: str) -> bool:
        live = self.busy[name]
        epoch = live.view.epoch + 1
        value = 0.5 + 0.3 * live.trial.params["x"] + 0.01 * epoch
        seconds = self._next_s[live.view.number]
        record = {"epoch": epoch, "val_top1": value, "val_loss": 1.0, "train_s": seconds}
        decision = self.manager.take_in(name, record)
        if decision == TrialDecision.PAUSE:
            self.manager.ended(name)
        if decision != TrialDecision.GO_ON:
            del self.busy[name]
        return decision == TrialDecision.GO_ON

    @property
    def all(self) -> list[FrozenTrial]:
        return self.store.study.get_trials(deepcopy=False)

    @property
    def held_s(self) -> float:
        return self.ledger.held_s
