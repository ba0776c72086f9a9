"""Whole searches of a space that a test writes, by the real manager in simulated time, without Ray."""

import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from bigbatch.search_spaces.constraints import SpaceTrial
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.models.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.runs.feasible import CONSTRAINTS_ATTR
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.simulate.replay import MemoryKeeper
from bigbatch.tune.simulate.stand_ins import SimulatedClock
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.live_trial import Over
from bigbatch.tune.trials.trial_manager import TrialManager

Params = Mapping[str, Any]
SLOTS = 2


class OwnConfigurations:
    """The configurations of a function that draws parameters, bounds the trial, and may raise."""

    name = "own"

    def __init__(self, space: Callable[[SpaceTrial], object], epochs: int) -> None:
        self._space, self._epochs = space, epochs

    def new(self, trial: Trial) -> TrainConfig:
        asked = SpaceTrial(trial)
        self._space(asked)
        bounds = {name: one.to_dict() for name, one in asked.constraints.items()}
        trial.set_user_attr(CONSTRAINTS_ATTR, bounds)
        return TrainConfig().replace_keys({"epochs": self._epochs, "schedule.warmup_epochs": 0.0})

    def again(self, stored: Params) -> TrainConfig:
        return TrainConfig.from_dict(dict(stored))


class SimulatedSearch:
    """A search on two slots.

    Args:
        dimensions: name of a parameter → its range.
        space: draws the parameters; see ``OwnConfigurations``.
        record: of the parameters and an epoch: what the epoch reports. ``train_s`` is also how long it takes.
        objectives: the first one steers; with several the study has a front.
    """

    def __init__(
        self, folder: Path, dimensions: Mapping[str, BaseDistribution],
        space: Callable[[SpaceTrial], object], record: Callable[[Params, int], dict[str, object]],
        *, strategy: str, stopping: str = "none", trials: int = 32, epochs: int = 4, seed: int = 0,
        objectives: tuple[Objective, ...] = (Objective(worst=0.1),), frontier: str | None = None,
    ) -> None:  # fmt: skip
        first, found = objectives[0], tuple(Dimension(name, one) for name, one in dimensions.items())
        facts = SearchFacts(found, trials, epochs, SLOTS, seed, first, frontier)
        self.clock, self.record, self.said = SimulatedClock(), record, list[str]()
        self.keeper = MemoryKeeper(folder, self.clock, first)
        if len(objectives) > 1:
            directions, storage = [objective.direction for objective in objectives], self.keeper.study._storage
            self.keeper.study = optuna.create_study(study_name="front", storage=storage, directions=directions)
        self.manager = TrialManager(
            self.keeper, make_strategy(strategy, stopping, facts), OwnConfigurations(space, epochs),
            objective=first, also=objectives[1:], trials=trials, workers=1, clock=self.clock,
            observers=[self],  # type: ignore[list-item]
        )  # fmt: skip

    def search_said(self, text: str) -> None:
        """As an observer."""
        self.said.append(text)

    def run(self) -> list[FrozenTrial]:
        """Until it is over. Returns its trials."""
        busy: list[tuple[float, int, str]] = []
        epochs: dict[str, int] = {}
        for order in range(100_000):
            try:
                live = self.manager.next_trial(f"t{order}") if len(busy) < SLOTS else None
            except Over:
                live = None
                if not busy:
                    break
            if live is not None:
                epochs[f"t{order}"] = self._trained(live.view.continues)
                heapq.heappush(busy, (self.clock.now_s + self._seconds(f"t{order}", epochs), order, f"t{order}"))
                continue
            self.clock.now_s, _, name = heapq.heappop(busy)
            epochs[name] += 1
            decision = self.manager.take_in(name, self._record(name, epochs[name]))
            if decision == TrialDecision.GO_ON:
                heapq.heappush(busy, (self.clock.now_s + self._seconds(name, epochs), order, name))
            self.manager.ended(name) if decision == TrialDecision.PAUSE else None
        self.keeper.ledger.close()
        return self.keeper.study.get_trials(deepcopy=False)

    def _record(self, name: str, epoch: int) -> dict[str, object]:
        return {"epoch": epoch, "val_loss": 1.0, **self.record(self.manager._live[name].trial.params, epoch)}

    def _seconds(self, name: str, epochs: Mapping[str, int]) -> float:
        return float(str(self._record(name, epochs[name] + 1).get("train_s", 1.0)))

    def _trained(self, continues: int | None) -> int:
        """The epochs of a paused trial; a continuation reports only what is new."""
        trials = self.keeper.study.get_trials(deepcopy=False)
        return 0 if continues is None else max(trials[continues].intermediate_values)


def late_share(trials: list[FrozenTrial], first: int, kind: Callable[[FrozenTrial], bool]) -> float:
    """Of the configurations from number ``first`` on, the part that is of this kind."""
    late = [t for t in trials if t.number >= first and "continues" not in t.user_attrs]
    return sum(map(kind, late)) / len(late)


def best_of(trials: list[FrozenTrial]) -> float:
    """The best value of the trials that ran to their end."""
    return max(t.values[0] for t in trials if t.state == TrialState.COMPLETE and t.values)
