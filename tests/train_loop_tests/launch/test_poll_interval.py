"""How often Ray Train's controller asks the workers of a run: the controller that Ray makes has our interval."""

from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch import trainer
from bigbatch.train_loop.launch.ray_internals import POLL_INTERVAL, poll_interval_s
from bigbatch.train_loop.launch.trial_task import TrialTask


def test_the_calls_a_second_stop_growing_with_the_workers() -> None:
    assert [poll_interval_s(n) for n in (1, 32, 64, 256, 640, 4096)] == [0.1, 0.1, 0.2, 0.8, 2.0, 2.0]
    assert max(n / poll_interval_s(n) for n in range(1, 641)) == pytest.approx(320)


def task_of(workers: int, folder: Path) -> TrialTask:
    return TrialTask(
        name="polled", config=TrainConfig(), workers=workers, worker_resources={"CPU": 1.0}, restarts=0,
        ray_storage=folder, checkpoint_dir=folder, checkpoint_every_s=0.0, stop_file=folder / "s",
        log_file=folder / "l",
    )  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The intervals of the controllers that are made. They are Ray's, and do not run."""
    from ray.train.v2._internal.execution.controller.controller import TrainController
    from ray.train.v2.api import data_parallel_trainer

    seen: list[float] = []

    async def run(self: Any) -> None:
        seen.append(self._health_check_interval_s)
        raise RuntimeError("enough")

    monkeypatch.setattr(TrainController, "run", run)
    monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)  # it needs a cluster
    monkeypatch.setenv(POLL_INTERVAL, "7")
    monkeypatch.setenv("RAY_TRAIN_METRICS_ENABLED", "0")
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    return seen


def test_a_trials_controller_takes_it(found: list[float], tmp_path: Path) -> None:
    for workers in (256, 1):  # a process runs trials of any size, one after the other
        with pytest.raises(RuntimeError, match="enough"):
            trainer.fit(task_of(workers, tmp_path))
    assert found == [0.8, 0.1]
