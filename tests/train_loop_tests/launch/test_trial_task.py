"""What crosses from the driver to the processes of a trial: one frozen record, a dict at Ray's boundary alone."""

import dataclasses
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from ray.train import RunConfig

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.launch import inline_controller, ray_internals, ray_worker, trainer
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd
from bigbatch.train_loop.loop import train
from helpers.packed_sets import pack_here

TASK = TrialTask(
    name="trial-0007", config=TrainConfig(epochs=3).replace_keys({"lr": 0.25}), workers=2,
    worker_resources={"CPU": 1.5, "GPU": 1.0}, restarts=3, ray_storage=Path("/scratch/ray"),
    checkpoint_dir=Path("/study/checkpoints/trial-0007"), checkpoint_every_s=20.0,
    log_file=Path("/study/logs/trial-0007.log"), stop_file=Path("/study/.stop"), stage_folder="/local",
    records_file=Path("/study/records.jsonl"), content="0f",
)  # fmt: skip


def test_a_task_survives_the_way_through_rays_dicts() -> None:
    handed = pickle.loads(pickle.dumps(TASK.to_dict()))
    assert TrialTask.from_dict(handed) == TASK
    with pytest.raises(TypeError, match="wokers"):
        TrialTask.from_dict({**handed, "wokers": 3})


def test_a_new_trial_never_trains_on_another_packed_set_than_the_search_began_with(
    tiny_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[TrainConfig] = []
    monkeypatch.setattr(train, "train", lambda config, **_: trained.append(config))
    images, world = shutil.copytree(tiny_images, tmp_path / "images"), World.current(torch.device("cpu"))
    packed, reporter = pack_here(images, tmp_path / "packed"), cast(ray_worker.RayReporter, None)
    config = TrainConfig().replace_keys({"data.name": str(packed)})
    task = dataclasses.replace(TASK, config=config, content=describe_data_set(config.data).content)
    ray_worker._train(task, reporter, world)
    one, other = sorted((images / "train").rglob("*.*"))[:2]
    shutil.copy(other, one)  # the names stay
    shutil.rmtree(packed)
    pack_here(images, packed)
    with pytest.raises(ConfigError, match="got another packed set .* --retry-failed"):
        ray_worker._train(task, reporter, world)
    assert trained == [config]


def test_the_workers_of_a_full_run_do_not_prepare_for_another_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.train import UserCallback

    seen: list[object] = []

    def in_process(reuse: inline_controller.Reuse) -> object:
        seen.append(reuse.between_trials)
        return lambda *_, **__: SimpleNamespace(fit=lambda: SimpleNamespace(return_value=None))

    monkeypatch.setattr(inline_controller, "trainer_in_process", in_process)
    monkeypatch.setattr(ray_internals, "set_poll_interval", lambda workers: None)
    for callback in (None, UserCallback()):
        assert trainer.fit(dataclasses.replace(TASK, ray_storage=tmp_path), callback) == WorkersEnd()
    assert seen == [None, ray_worker.between_trials]


def test_a_start_of_workers_that_always_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's default repeats it for ever, and tells nobody."""
    from ray.train import UserCallback
    from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
    from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
    from ray.train.v2.api.exceptions import ControllerError

    given: list[RunConfig] = []

    def make(*_: object, run_config: RunConfig, **__: object) -> SimpleNamespace:
        given.append(run_config)
        return SimpleNamespace(fit=lambda: SimpleNamespace(return_value=None))

    monkeypatch.setattr(inline_controller, "trainer_in_process", lambda reuse: make)
    monkeypatch.setattr(ray_internals, "set_poll_interval", lambda workers: None)
    trainer.fit(dataclasses.replace(TASK, ray_storage=tmp_path), UserCallback())
    policy = DefaultFailurePolicy(given[0].failure_config)
    error = ControllerError(WorkerGroupStartupFailedError("One of the worker actors failed to initialize"))
    decisions = [policy.make_decision(error) for _ in range(trainer.FAILED_STARTS + 1)]
    assert decisions == [FailureDecision.RETRY] * trainer.FAILED_STARTS + [FailureDecision.RAISE]
