"""One trial of a search: a Tune function that builds a ``TorchTrainer``.

Every Python error is reported as a failure with its reason. So Tune sees an error only if a process dies. Such a trial
runs again from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import ray.tune
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.tune import PlacementGroupFactory

from bigbatch.base.waits import TRIAL_END_S
from bigbatch.train_loop.host.node_memory import count_memory_kills
from bigbatch.train_loop.launch import ray_internals
from bigbatch.train_loop.launch.ray_worker import (
    FAILURE,
    FAILURE_KIND,
    RECORDS,
    between_trials,
    drop_trial,
    may_serve_again,
    train_worker,
)
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd, failed_end, fit_until_it_fits

if TYPE_CHECKING:  # it imports torch, which the search's own process does not need
    from ray.train.torch import TorchTrainer

INLINE = ray_internals.has(ray_internals.INLINE_CONTROLLER)
"""Whether the trial's own process controls its workers. If not, Ray's stock trainer does the same, but slower."""


class _EndsItsWorkers:
    """A mixin for the Tune trainable: a trial ends only after its workers have ended."""

    def cleanup(self) -> None:
        ray_internals.request_stop()
        with contextlib.suppress(Exception):  # the trial's own errors were reported while it ran
            ray_internals.finish_session(TRIAL_END_S)
        # Tune ends this process, and with it the only one that knows of them.
        ray_internals.end_kept_workers()
        super().cleanup()  # type: ignore[misc]

    def reset_config(self, new_config: dict[str, object]) -> bool:
        ray_internals.request_stop()
        return bool(super().reset_config(new_config))  # type: ignore[misc]


def run_trial(handed: dict[str, object]) -> None:
    """Train one configuration on the trial's workers and report each epoch to Tune.

    Args:
        handed: a ``TrialTask``, as the plain dict that Ray Tune carries.
    """
    # The kernel counts since the group began: only later kills can be this trial's.
    kills = count_memory_kills()
    try:
        task = TrialTask.from_dict(handed)
        end = fit_until_it_fits(partial(_fit, task), task.checkpoint_dir, _is_stopping)
    except Exception as error:
        end = failed_end(error, kills)
    if end.failure:
        ray.tune.report({RECORDS: [], FAILURE: end.failure, FAILURE_KIND: end.kind})


def _is_stopping() -> bool:
    return INLINE and ray_internals.is_stop_requested()


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
    ray_internals.set_poll_interval(task.workers)
    trainer = make_trainer(train_worker, task.to_dict(), scaling, run)
    # An earlier attempt of this trial may have written one.
    task.failure_file.unlink(missing_ok=True)
    try:
        end: WorkersEnd | None = trainer.fit().return_value
        return end or WorkersEnd()
    finally:
        # Nobody reads these three files again, and a search of a thousand trials could exceed a quota of inodes.
        shutil.rmtree(task.ray_storage / task.name, ignore_errors=True)


class _ReportToTune(UserCallback):
    """Reports rank 0's metrics to Tune, in this process. The loop reduces metrics, so they are equal on all ranks.

    ``ray.tune.report`` raises SystemExit if Tune has stopped the trial.
    """

    def after_report(self, run_context: object, metrics: list[dict[str, object]], checkpoint: object) -> None:
        ray.tune.report(dict(metrics[0]))


def make_trainer(
    train_function: Callable[[dict[str, object]], object],
    train_config: dict[str, object],
    scaling_config: ScalingConfig,
    run_config: RunConfig,
) -> TorchTrainer:
    """The trainer of a trial, whose reports reach Tune. Call it inside a Tune function.

    For each trial, stock Ray Train starts not only workers but also a controller, a queue and a cleaner, with a second
    placement group. On two cores that takes most of a short trial's time. A stopped trial returns its resources only
    after the cleaner has learnt of the stop through the dashboard.

    With ``INLINE`` the controller's coroutine runs in the trial's thread, reports go directly to Tune, and the workers
    use the placement group that Tune made for the trial. So Tune alone accounts for the resources, and stopping a trial
    ends or frees its workers first: those that left it in order train this process's next one. See docs/decisions/002.
    """
    if INLINE:
        reuse = ray_internals.Reuse(may_serve_again, drop_trial, between_trials)
        trainer_of, callback = ray_internals.trainer_in_process(reuse), _ReportToTune()
    else:
        from ray.train.torch import TorchTrainer
        from ray.tune.integration.ray_train import TuneReportCallback

        trainer_of, callback = TorchTrainer, TuneReportCallback()
    run_config.callbacks = [*(run_config.callbacks or []), callback]
    return trainer_of(
        train_function, train_loop_config=train_config, scaling_config=scaling_config, run_config=run_config
    )


def trainable() -> Callable[[dict[str, object]], None]:
    """``run_trial`` for ``Tuner``, with the resources that each trial's task names."""
    # Tune makes a class of the function, and takes these as further bases of it (function_trainable.py).
    run_trial.__mixins__ = (_EndsItsWorkers,)  # type: ignore[attr-defined]
    return ray.tune.with_resources(run_trial, _resources)


def _resources(handed: dict[str, object]) -> PlacementGroupFactory:
    if not INLINE:
        # The stock trainer reserves its workers itself. This process reserves no CPU: the workers may need all.
        return PlacementGroupFactory([{"node:__internal_head__": 0.001}])
    # An empty first bundle: the trial's own process takes no CPU from the workers.
    task = TrialTask.from_dict(handed)
    return PlacementGroupFactory([{}, *[dict(task.worker_resources)] * task.workers], strategy="PACK")
