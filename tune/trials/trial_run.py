"""One trial of a search: a Tune function that builds a ``TorchTrainer``.

Every Python error is reported as a failure with its reason. So Tune sees an error only if a process dies. Such a trial
runs again from its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial

import ray.tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.tune import PlacementGroupFactory

from bigbatch.cluster.host.waits import TRIAL_END_S
from bigbatch.train_loop.host.node_memory import count_memory_kills
from bigbatch.train_loop.launch.ray_worker import FAILURE, FAILURE_KIND, RECORDS, train_worker
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd
from bigbatch.train_loop.launch.worker_failures import failed_end, fit_until_it_fits

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
    kills = count_memory_kills()
    try:
        task = TrialTask.from_dict(handed)
        end = fit_until_it_fits(partial(_fit, task), task.checkpoint_dir, _is_stopping)
    except Exception as error:
        end = failed_end(error, kills)
    if end.failure:
        ray.tune.report({RECORDS: [], FAILURE: end.failure, FAILURE_KIND: end.kind})


def _is_stopping() -> bool:
    return INLINE and inline_trainer.is_stop_requested()


def _fit(task: TrialTask) -> WorkersEnd:
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
        return end or WorkersEnd()
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
