"""Whole searches by the real manager in simulated time, without Ray: a test invents the epochs, and kills the driver.

``SimulatedSearch`` is what all of them do. A test file makes one from a space of its own (``own_search``), from a plan
(``planned_search``), or with a budget (``BudgetedSearch``); ``helpers.conducted`` has those that are killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial
from replay.search import MemoryKeeper
from replay.stand_ins import SimulatedClock

from bigbatch.search_spaces.trial import SpaceTrial
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.confirm_reserve import ConfirmationReserve
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.budget.pace import Pace, SessionTimes
from bigbatch.tune.models.protocol import Dimension, SearchFacts, Strategy, TrialDecision
from bigbatch.tune.plan.enqueued import enqueue_first_trials
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.confirmation import ConfirmationFacts, missing_confirmations
from bigbatch.tune.runs.feasible import CONSTRAINTS_ATTR
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Kind, earlier_of
from bigbatch.tune.search.running import configurations_of, missing_in, strategy_of
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.configurations import Configurations
from bigbatch.tune.trials.live_trial import LiveTrial, Over
from bigbatch.tune.trials.trial_manager import TrialManager

Params = Mapping[str, Any]
Epoch = dict[str, object]
"""What an epoch reports. ``train_s`` is also how long it takes; 1 s without it."""
TOP1 = Objective(worst=0.1)


@dataclass
class Busy:
    """A slot that trains an epoch."""

    live: LiveTrial
    record: Epoch | None
    ends_at: float


@dataclass(kw_only=True)
class SimulatedSearch:
    """A search on equal slots. A step begins a trial in a free slot, or ends the epoch that is the next to end."""

    open_store: Callable[[], Any]
    """Opens the study, as each process does when it begins."""
    strategy: Callable[[], Strategy]
    configurations: Configurations
    record: Callable[[LiveTrial, int], Epoch | None]
    """What a trial's epoch (1-based) reports. None: the trial's processes die in it."""
    count: int
    """Configurations to try."""
    objectives: tuple[Objective, ...] = (TOP1,)
    slots: int = 2
    start_s: float = 0.0
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    more: Callable[[], Mapping[str, Any]] = dict
    """Further arguments of the manager, whose store is open by then."""
    busy: dict[str, Busy] = field(default_factory=dict)
    nothing_to_begin: bool = False
    """Whether the manager had no trial for a free slot since the last epoch ended."""
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Begin, or go on as the next process does."""
        self.store = self.open_store()
        self.manager = TrialManager(
            self.store, self.strategy(), self.configurations, objectives=Objectives(self.objectives),
            trials=self.count, workers=1, **{"observers": [self], **self.more()},
        )  # fmt: skip
        self.manager.recover()

    def search_said(self, text: str) -> None:
        """As an observer."""
        self.said.append(text)

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.store.study.get_trials(deepcopy=False)

    @property
    def over(self) -> bool:
        return self.nothing_to_begin and not self.busy

    def run(self, until: Callable[[list[FrozenTrial]], bool] = lambda _: False, kills: Collection[int] = ()) -> Self:
        """Until it is over, or for the study's trials ``until`` is true. Before the steps ``kills`` its driver dies."""
        for step in range(50_000):
            if self.over or until(self.trials):
                return self
            if step in kills:
                self.kill()
            self.step()
        raise AssertionError("it does not end")

    def kill(self) -> None:
        """Forget all but the study. Each slot gets its trial again, unless the study knows how that has ended."""
        self.store.close()
        self.open()
        for name in sorted(self.busy, key=lambda name: self.busy[name].live.number):
            if self.trials[self.busy[name].live.number].state.is_finished():
                del self.busy[name]
            else:
                self.busy[name].live = self.manager.next_trial(name)
        self.nothing_to_begin = False

    def step(self) -> None:
        free = [name for name in "ABCDEFGH"[: self.slots] if name not in self.busy]
        if free and not self.nothing_to_begin:
            self._begin(free[0])
        else:
            self.nothing_to_begin = False
            if self.busy:
                self._end_epoch(min(self.busy, key=lambda name: (self.busy[name].ends_at, name)))

    def _begin(self, name: str) -> None:
        try:
            live = self.manager.next_trial(name)
        except Over:
            live = None
        self.nothing_to_begin = live is None
        if live is not None:
            self.busy[name] = self._next_epoch(live, self.clock.now_s + self.start_s)

    def _next_epoch(self, live: LiveTrial, begins_at: float) -> Busy:
        record, past = self.record(live, live.epochs + 1), 0
        if live.kind == Kind.CONTINUATION:  # the epochs of the paused trial are sent again, at once
            past = max(self.trials[earlier_of(live) or 0].intermediate_values)
        seconds = 0.0 if record is None or live.epochs < past else float(str(record.get("train_s", 1.0)))
        return Busy(live, record, begins_at + seconds)

    def _end_epoch(self, name: str) -> None:
        one = self.busy[name]
        if not self._wait(one.ends_at):
            return
        if one.record is None:
            self.manager.fail(name, f"ImageError in trial {one.live.number}", FailureKind.IMAGES)
        elif self.manager.take_in(name, one.record) == TrialDecision.GO_ON:
            self.busy[name] = self._next_epoch(one.live, one.ends_at)
            return
        else:
            self.manager.ended(name)
        del self.busy[name]

    def _wait(self, until_s: float) -> bool:
        """Pass the time. Returns whether the search still goes on then."""
        self.clock.now_s = until_s
        return True


class OwnConfigurations:
    """The configurations of a function that draws parameters, may bound the trial, and may raise."""

    name = "own"

    def __init__(self, space: Callable[[SpaceTrial], Mapping[str, object] | None], epochs: int) -> None:
        self._space, self._epochs = space, epochs

    def new(self, trial: Trial) -> TrainConfig:
        asked = SpaceTrial(trial)
        changes = self._space(asked) or {}
        trial.set_user_attr(CONSTRAINTS_ATTR, {name: one.to_dict() for name, one in asked.constraints.items()})
        return TrainConfig().replace_keys({"epochs": self._epochs, "schedule.warmup_epochs": 0.0, **changes})

    def again(self, stored: Params) -> TrainConfig:
        return TrainConfig.from_dict(dict(stored))


def own_search(
    folder: Path, dimensions: Mapping[str, BaseDistribution], space: Callable[[SpaceTrial], None],
    record: Callable[[Params, int], Epoch], *, strategy: str, stopping: str = "none", trials: int = 32, epochs: int = 4,
    seed: int = 0, objectives: tuple[Objective, ...] = (TOP1,), frontier: str | None = None,
) -> SimulatedSearch:  # fmt: skip
    """A search of a space that the test writes, in memory.

    Args:
        dimensions: name of a parameter → its range.
        space: draws the parameters; see ``OwnConfigurations``.
        record: of the parameters and an epoch: what the epoch reports.
        objectives: the first one steers; with several the study has a front.
    """
    found = tuple(Dimension(name, one) for name, one in dimensions.items())
    facts = SearchFacts(found, trials, epochs, 2, seed, objectives[0], frontier)
    clock = SimulatedClock()

    def store() -> MemoryKeeper:
        keeper = MemoryKeeper(folder, clock, objectives[0])
        if len(objectives) > 1:
            directions = [objective.direction for objective in objectives]
            keeper.study = optuna.create_study(storage=keeper.study._storage, directions=directions)
        return keeper

    return SimulatedSearch(
        open_store=store, strategy=lambda: make_strategy(strategy, stopping, facts), count=trials, clock=clock,
        configurations=OwnConfigurations(space, epochs), objectives=objectives,
        record=lambda live, epoch: {"epoch": epoch, "val_loss": 1.0, **record(live.params, epoch)},
    )  # fmt: skip


def late_share(trials: list[FrozenTrial], first: int, kind: Callable[[FrozenTrial], bool]) -> float:
    """Of the configurations from number ``first`` on, the part that is of this kind."""
    late = [t for t in trials if t.number >= first and "continues" not in t.user_attrs]
    return sum(map(kind, late)) / len(late)


def planned_search(
    plan: SearchPlan, curve: Callable[[TrainConfig, int], float], fails: Collection[int] = (), *,
    epoch_s: float = 1.0, admission: Admission | None = None, **more: Any,
) -> SimulatedSearch:  # fmt: skip
    """A search of a plan, in its folder.

    Args:
        curve: of a configuration and an epoch: its validation top-1.
        fails: numbers of trials whose processes die in their first epoch.
        more: of ``SimulatedSearch``.
    """

    def store() -> StudyStore:
        if plan.folder.exists():
            return StudyStore.open(plan.folder, None)
        made = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
        enqueue_first_trials(plan, made.study)
        return made

    def record(live: LiveTrial, epoch: int) -> Epoch | None:
        found = {"epoch": epoch, "val_top1": curve(live.train_config, epoch), "val_loss": 1.0, "optimizer_steps": epoch}
        return None if live.number in fails else {**found, "train_s": epoch_s}

    return SimulatedSearch(
        open_store=store, strategy=lambda: strategy_of(plan), configurations=configurations_of(plan), record=record,
        count=plan.trials, objectives=(plan.objectives.first,), 
        more=lambda: {"confirm": missing_in(plan), "admission": admission}, **more,
    )  # fmt: skip


EPOCHS = 5
BATCHES = (32, 128)
BATCH = "global_batch_size"
BUDGETED_SPACE = (Dimension(BATCH, CategoricalDistribution(BATCHES)), Dimension("x", FloatDistribution(0.0, 1.0)))


def draw(trial: SpaceTrial) -> Mapping[str, object]:
    batch = trial.suggest_categorical(BATCH, list(BATCHES))
    return {"batch.global_size": batch, "optimizer.peak_lr": 0.1 + trial.suggest_float("x", 0.0, 1.0)}


NOTHING_MEASURED = SessionTimes(trial_start_s=0.0)


class BudgetedSearch(SimulatedSearch):
    """A random search with the real ledger and budget, on slots of one device each.

    Args:
        owned: whether the budget counts all slots all the time.
        seconds: what an epoch of that batch takes.
        ray_s, start_s, end_s: what Ray's start, a trial's start, and the end take.
        expected: what the budget keeps room for before it has measured anything.
        guess: how many trials strategies are told.
        on_disk: for searches that another one resumes. A study in memory waits for no disk.
    """

    def __init__(
        self, folder: Path, limits: Limits, confirm: ConfirmationFacts | None, *, slots: int = 2, owned: bool = True,
        seconds: Callable[[int], float] = lambda batch: 10.0, ray_s: float = 0.0, start_s: float = 5.0,
        end_s: float = 8.0, expected: SessionTimes = NOTHING_MEASURED, guess: int = 20,
        open_ended: bool = False, stopping: str = "none", on_disk: bool = False, clock: SimulatedClock | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.limits, self.confirm, self.owned = folder, limits, confirm, owned
        self.ray_s, self.end_s, self.expected, self.was_spent = ray_s, end_s, expected, False
        facts = SearchFacts(BUDGETED_SPACE, guess, EPOCHS, slots, 3, TOP1, BATCH, open_ended=open_ended)

        def record(live: LiveTrial, epoch: int) -> Epoch:
            value = 0.5 + 0.3 * live.params["x"] + 0.01 * epoch
            taken = seconds(live.train_config.batch.global_size)
            return {"epoch": epoch, "val_top1": value, "val_loss": 1.0, "train_s": taken}

        super().__init__(
            open_store=self._on_disk if on_disk else lambda: MemoryKeeper(folder, self.clock, TOP1),
            strategy=lambda: make_strategy("random", stopping, facts), configurations=OwnConfigurations(draw, EPOCHS),
            record=record, count=10**6, slots=slots, start_s=start_s, clock=clock or SimulatedClock(),
            more=self._with_budget,
        )  # fmt: skip

    def _on_disk(self) -> StudyStore:
        exists = self.folder.exists()
        made = StudyStore.open(self.folder, None) if exists else StudyStore.create(self.folder, "s", {}, None)
        made.ledger.close()
        made.ledger = Ledger(self.folder / "ledger", self.clock)
        return made

    def _with_budget(self) -> Mapping[str, Any]:
        ledger, confirm, began = self.store.ledger, self.confirm, self.clock.now_s
        ledger.hold(self.slots if self.owned else None)
        self.clock.now_s += self.ray_s
        self.budget = Budget(
            self.limits, Pace(self.trials, self.expected.trial_start_s),
            held_s=lambda: ledger.held_s, devices=lambda: self.slots if self.owned else None,
            clock=self.clock, ending_s=self.expected.ending_s, began=began,
        )  # fmt: skip
        if confirm is None:
            return {"admission": Admission(self.budget, 1, None)}
        admission = Admission(self.budget, 1, ConfirmationReserve(confirm))
        return {"admission": admission, "confirm": lambda trials: missing_confirmations(trials, confirm)}

    def _wait(self, until_s: float) -> bool:
        """Tune asks about the budget several times a second."""
        while self.clock.now_s < until_s and not self.was_spent:
            self.clock.now_s = min(until_s, self.clock.now_s + 1.0)
            self.was_spent = self.budget.spent() is not None
        return not self.was_spent

    @property
    def over(self) -> bool:
        return self.was_spent or super().over

    def run(self, until: Callable[[list[FrozenTrial]], bool] = lambda _: False, kills: Collection[int] = ()) -> Self:
        """As every search. If ``until`` ends it, its driver was killed."""
        super().run(until, kills)
        if not until(self.trials):
            self.manager.release()
            self.clock.now_s += self.end_s
        self.store.ledger.close()
        if isinstance(self.store, StudyStore):
            self.store.close()
        return self

    @property
    def all(self) -> list[FrozenTrial]:
        return self.trials

    @property
    def held_s(self) -> float:
        return self.store.ledger.held_s
