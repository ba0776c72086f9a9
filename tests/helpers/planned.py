"""Whole searches of a real plan by the real manager, without Ray: invented values, two slots, killed by the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.first_trials import enqueue_first_trials
from bigbatch.tune.search.running import configurations_of, missing_in, strategy_of
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.live_trial import LiveTrial
from bigbatch.tune.trials.trial_manager import TrialManager
from helpers.stepped import SteppedSearch

Curve = Callable[[TrainConfig, int], float]
"""From a configuration and an epoch to its validation top-1."""


@dataclass
class PlannedSearch(SteppedSearch):
    """A search of a plan."""

    plan: SearchPlan
    curve: Curve
    fails: Callable[[FrozenTrial], bool] = lambda _: False
    """Whether the trial's process dies in its first epoch."""

    def open(self) -> None:
        if self.plan.folder.exists():
            self.store = StudyStore.open(self.plan.folder, None)
        else:
            self.store = StudyStore.create(self.plan.folder, self.plan.study, self.plan.to_dict(), None)
        self.manager = TrialManager(
            self.store, strategy_of(self.plan), configurations_of(self.plan),
            objective=self.plan.objectives.first, confirm=missing_in(self.plan),
            trials=self.plan.trials, workers=1, observers=[],
        )  # fmt: skip
        self.manager.recover()
        enqueue_first_trials(self.plan, self.store.study)

    def goes_on(self, name: str, live: LiveTrial) -> bool:
        if self.fails(self.trials[live.trial.number]):
            self.manager.fail(name, f"ImageError in trial {live.trial.number}", FailureKind.IMAGES)
            return False
        epoch = live.view.epoch + 1
        value = self.curve(live.config, epoch)
        record: dict[str, object] = {"epoch": epoch, "val_top1": value, "val_loss": 1.0, "optimizer_steps": epoch}
        return self.take_in(name, record)
