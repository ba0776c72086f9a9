"""A ``TorchTrainer`` for use inside a Tune trial. Its controller runs in the trial's own process.

For each trial, stock Ray Train V2 starts not only workers but also a controller actor, a queue actor, a placement-group
cleaner and a second placement group. On two cores, starting these processes takes most of a short trial's time. A
stopped trial returns its resources only after the cleaner has learnt of the stop through the dashboard, which never
happens if two clusters share a host.

Here the controller's coroutine runs in the trial's thread, reports go directly to Tune, and the workers use the
placement group that Tune made for the trial. So Tune alone accounts for the resources, and stopping a trial first
ends its workers.

This relies on private names of Ray Train V2. ``is_ray_supported()`` checks them; if they are missing,
``bigbatch.tune.trials.trial_run`` falls back to the stock trainer. See docs/decisions/002.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping

import ray
import ray.tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.callback import UserCallback

# A process runs one trial at a time, so one flag for each process is enough.
_stop_requested = threading.Event()


def request_stop() -> None:
    """Ask the trial in this process to end. Its controller notices at its next poll (about 0.1 s)."""
    _stop_requested.set()


def is_stop_requested() -> bool:
    """Whether the trial in this process was asked to end."""
    return _stop_requested.is_set()


class _BorrowedPlacementGroup(DefaultPlacementGroupHandle):
    """The trial's placement group. Tune made it and removes it; the worker group only uses it."""

    def shutdown(self) -> None:
        pass


class _TrialWorkerGroup(WorkerGroup):
    def _create_placement_group(self, *_: object) -> DefaultPlacementGroupHandle:
        return _BorrowedPlacementGroup(ray.util.get_current_placement_group())

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Mapping[str, object] | None) -> dict[str, object]:
        # Workers inherit the job's environment. With another environment they could not use the worker
        # processes that Ray has already started.
        return dict(custom_runtime_env or {})


class _TrialController(TrainController):
    worker_group_cls = _TrialWorkerGroup

    async def _run_control_loop_iteration(self) -> None:
        if _stop_requested.is_set():
            raise SystemExit(0)
        await super()._run_control_loop_iteration()

    def end_workers(self) -> None:
        """End the workers of a run that ended early. Does nothing after a normal end."""
        group: WorkerGroup | None = getattr(self, "_worker_group", None)
        if group is not None:
            group.shutdown()
            self._worker_group = None


class _ReportToTune(UserCallback):
    """Reports rank 0's metrics to Tune, in this process. The loop reduces metrics, so they are equal on all ranks.

    ``ray.tune.report`` raises SystemExit if Tune has stopped the trial.
    """

    def after_report(self, run_context: object, metrics: list[dict[str, object]], checkpoint: object) -> None:
        ray.tune.report(dict(metrics[0]))


class InlineTorchTrainer(TorchTrainer):
    """A ``TorchTrainer`` whose controller runs in the calling process."""

    def _create_default_callbacks(self) -> list[object]:
        # Each of these two would start an actor. The cleaner has nothing to clean, and there are no
        # Ray data sets.
        unneeded = (PlacementGroupCleanerCallback, DatasetsCallback)
        return [c for c in super()._create_default_callbacks() if not isinstance(c, unneeded)]

    def _initialize_and_run_controller(self, **controller_kwargs: object) -> object:
        async def run() -> object:
            controller = _TrialController(**controller_kwargs)
            try:
                await controller.run()
                return controller.get_result()
            finally:
                controller.end_workers()

        _stop_requested.clear()
        return asyncio.run(run())


def is_ray_supported() -> bool:
    """Whether this Ray has the private hooks that the inline trainer overrides."""
    return (
        hasattr(TorchTrainer, "_initialize_and_run_controller")
        and hasattr(TorchTrainer, "_create_default_callbacks")
        and hasattr(TrainController, "worker_group_cls")
        and inspect.iscoroutinefunction(getattr(TrainController, "_run_control_loop_iteration", None))
        and hasattr(WorkerGroup, "_create_placement_group")
        and hasattr(WorkerGroup, "_get_worker_runtime_env")
    )


def make_trainer(
    train_function: Callable[[dict[str, object]], object],
    train_config: dict[str, object],
    scaling_config: ScalingConfig,
    run_config: RunConfig,
) -> TorchTrainer:
    """The trainer of a trial, whose reports reach Tune. Call it inside a Tune function."""
    run_config.callbacks = [*(run_config.callbacks or []), _ReportToTune()]
    return InlineTorchTrainer(
        train_function, train_loop_config=train_config, scaling_config=scaling_config, run_config=run_config
    )
