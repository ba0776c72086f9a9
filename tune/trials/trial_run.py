"""One trial of a search: a Tune function that builds a ``TorchTrainer``.

Every Python error is reported as a failure with its reason. So Tune sees an error only if a process dies. Such a trial
runs again from its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import ray.tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.tune import PlacementGroupFactory

from bigbatch.cluster.host.waits import TRIAL_END_S
from bigbatch.train_loop.errors import ImageError, LoaderError
from bigbatch.train_loop.host.disk_full import DiskFull
from bigbatch.train_loop.launch.ray_worker import FAILURE, RECORDS, train_worker
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd

try:
    from bigbatch.tune.trials import inline_trainer

    INLINE = inline_trainer.is_ray_supported() and os.environ.get("BIGBATCH_INLINE_CONTROLLER", "1") != "0"
except ImportError:  # an untested Ray: its stock trainer does the same, but slower
    INLINE = False


class _EndsItsWorkers:
    """A mixin for the Tune trainable: a trial ends only after its workers have ended."""

    def cleanup(self) -> None:
        if INLINE:
            inline_trainer.request_stop()
        try:
            from ray.train._internal.session import get_session

            get_session().finish(timeout=TRIAL_END_S)
        except Exception:
            pass  # the trial's own errors were reported while it ran
        super().cleanup()  # type: ignore[misc]

    def reset_config(self, new_config: dict[str, object]) -> bool:
        if INLINE:
            inline_trainer.request_stop()
        return bool(super().reset_config(new_config))  # type: ignore[misc]


def run_trial(handed: dict[str, object]) -> None:
    """Train one configuration on the trial's workers and report each epoch to Tune.

    Args:
        handed: a ``TrialTask``, as the plain dict that Ray Tune carries.
    """
    try:
        failure = _train(TrialTask.from_dict(handed))
    except Exception as error:
        failure = _reason(error)
    if failure:
        ray.tune.report({RECORDS: [], FAILURE: failure})


def _train(task: TrialTask) -> str | None:
    scaling = ScalingConfig(
        num_workers=task.workers,
        use_gpu="GPU" in task.worker_resources,
        resources_per_worker=dict(task.worker_resources),
    )
    run = RunConfig(
        name=task.name,
        storage_path=str(task.ray_storage),
        failure_config=FailureConfig(max_failures=task.restarts),
    )
    if INLINE:
        trainer = inline_trainer.make_trainer(train_worker, task.to_dict(), scaling, run)
    else:
        from ray.train.torch import TorchTrainer
        from ray.tune.integration.ray_train import TuneReportCallback

        run.callbacks = [TuneReportCallback()]
        trainer = TorchTrainer(train_worker, train_loop_config=task.to_dict(), scaling_config=scaling, run_config=run)
    task.failure_file.unlink(missing_ok=True)
    try:
        end: WorkersEnd | None = trainer.fit().return_value
        return end.failure if end is not None else None
    finally:
        # Nobody reads these three files again, and a search of a thousand trials could exceed a quota of inodes.
        shutil.rmtree(task.ray_storage / task.name, ignore_errors=True)


def trainable() -> Callable[[dict[str, object]], None]:
    """``run_trial`` for ``Tuner``, with the resources that each trial's task names."""
    run_trial.__mixins__ = (_EndsItsWorkers,)  # type: ignore[attr-defined]
    return ray.tune.with_resources(run_trial, _resources)


def _resources(handed: dict[str, object]) -> PlacementGroupFactory:
    if not INLINE:
        # The stock trainer reserves its workers itself. This process reserves no CPU: the workers may need all.
        return PlacementGroupFactory([{"node:__internal_head__": 0.001}])
    # An empty first bundle: the trial's own process takes no CPU from the workers.
    task = TrialTask.from_dict(handed)
    return PlacementGroupFactory([{}, *[dict(task.worker_resources)] * task.workers], strategy="PACK")


def _reason(error: Exception) -> str:
    """The cause of the error in one line. Ray wraps a worker's error in its own."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        # If one worker fails, the workers that wait for it fail too.
        rank, cause = min(
            failures.items(), key=lambda item: not isinstance(item[1], ImageError | LoaderError | DiskFull)
        )
        return f"worker {rank}: {_last_line(cause)}"
    return _last_line(error)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else "no message"
    name = type(error).__name__
    return text if text.startswith(name) or ": " in text else f"{name}: {text}"
