"""The bridge between Ray and Optuna as tests drive it, with a space, trials and epochs that they know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bigbatch.search_spaces.check import check_space
from bigbatch.search_spaces.registry import load_space
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.tune.models.protocol import SearchFacts, dimensions_of
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.bridge import OptunaBridge
from bigbatch.tune.trials.configurations import SpaceConfigurations

EPOCHS = 4

WORKLOAD = Workload(
    data="digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=EPOCHS, max_micro_size=256
)

SHORT_WARMUP = {"schedule.warmup_epochs": 0.5}
"""Over before the first epoch ends, so that every epoch may be judged."""


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.said: list[str] = []

    def trial_started(self, trial):
        self.events.append(("started", trial.number, trial.state.name))

    def epoch_ended(self, trial, record):
        self.events.append(("epoch", trial.number, str(record["epoch"])))

    def trial_ended(self, trial):
        self.events.append(("ended", trial.number, trial.state.name))

    def search_said(self, text):
        self.said.append(text)


def record(epoch: int, value: float, **more: float) -> dict:
    return {"epoch": epoch, "epochs": EPOCHS, "val_top1": value, "val_loss": 1.0, "train_loss": 1.0, **more}


def task_of(number: int, config: TrainConfig) -> TrialTask:
    folder = Path("never-made")
    return TrialTask(
        name=f"trial-{number:04d}", config=config, workers=1, worker_resources={"CPU": 1.0}, restarts=0,
        ray_storage=folder, checkpoint_dir=folder, checkpoint_every_s=1.0, log_file=folder / "trial.log",
        stop_file=folder / "stop",
    )  # fmt: skip


def number_of(task: Any) -> int:
    """The trial's number, from the name that its processes are handed."""
    return int(str(task["name"]).removeprefix("trial-"))


def make_bridge(
    store: StudyStore, *, trials=6, concurrency=2, strategy="tpe", pruner="none", seed=3,
    observers=(), overrides=None, space=None, **more,
) -> OptunaBridge:  # fmt: skip
    large_batch = load_space("large_batch")
    facts = SearchFacts(dimensions_of(check_space(large_batch, WORKLOAD)), trials, EPOCHS, concurrency, seed)
    return OptunaBridge(
        store, make_strategy(strategy, pruner, facts),
        SpaceConfigurations(space or large_batch, WORKLOAD, overrides or {}, 3, 1),
        objectives=more.pop("objectives", Objectives()), trials=trials, workers=1, observers=list(observers),
        room=lambda live: len(live) < concurrency, make_task=task_of, **more,
    )  # fmt: skip


def reopen(store: StudyStore) -> StudyStore:
    """The study as the next process finds it; the lock goes with the first process."""
    store.close()
    return StudyStore.open(store.folder, None)


def run_out(bridge: OptunaBridge, ray_id: str, values: list[float]) -> bool:
    """Report values, an epoch each; True if the bridge stopped the trial before the last."""
    for epoch, value in enumerate(values, 1):
        if bridge.observe(ray_id, {"records": [record(epoch, value)]}) and epoch < EPOCHS:
            return True
    return False


def set_space(bridge: OptunaBridge, space: Any) -> None:
    """Let the bridge sample ``space`` from now on."""
    bridge._configurations = SpaceConfigurations(space, WORKLOAD, {}, 3, 1)


class BrokenSpace:
    """A user's space whose configurations are wrong; ``good`` after so many calls."""

    name = "broken"

    def __init__(self, outcome: object, good_after: int = 10**9) -> None:
        self.outcome, self.good_after, self.calls = outcome, good_after, 0

    def __call__(self, trial, workload, pinned=None):
        trial.suggest_float("x", 0, 1)
        self.calls += 1
        if self.calls > self.good_after:
            return load_space("smoke")(trial, workload, pinned)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome
