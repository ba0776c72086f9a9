"""Ray Train's controller and its workers in a process that exists already. docs/decisions/002 says why.

Classes here override Ray's own and use its private names: ``ray_internals.py`` says of which version of Ray.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bigbatch.base.waits import ANSWER_S, LEAVE_S
from bigbatch.train_loop.launch.ray_internals import poll_interval_s

# A process runs one trial at a time, so one flag for each process is enough.
_stop_requested = threading.Event()


def request_stop() -> None:
    """Ask the trial in this process to end. Its controller notices at its next poll."""
    _stop_requested.set()


class _InTrial:
    """Overrides ``TrainController``: it ends when the trial is stopped, together with its workers."""

    _worker_group: Any

    async def _run_control_loop_iteration(self) -> None:
        if _stop_requested.is_set():
            raise SystemExit(0)
        await super()._run_control_loop_iteration()  # type: ignore[misc]

    def end_workers(self) -> None:
        """End the workers of a run that ended early. Does nothing after a normal end."""
        group = getattr(self, "_worker_group", None)
        if group is not None:
            group.shutdown()
            self._worker_group = None


class _Borrowed:
    """Overrides ``DefaultPlacementGroupHandle``: the maker of the group removes it; the workers only use it."""

    def shutdown(self) -> None:
        pass


class _AsksForNothing:
    """Overrides ``ScalingPolicy``: the workers have their place, so it asks no autoscaler for room.

    Ray would start an actor for that, before the first trial.
    """

    def _send_resource_request(self) -> None:
        pass

    _maybe_send_resource_request = _send_resource_request
    _cancel_resource_request = _send_resource_request


class _Decides:
    """Overrides ``DefaultFailurePolicy``, which counts failures: some end the run at once, and some do not count."""

    reuse: Reuse

    def make_decision(self, training_failed_error: Exception) -> object:
        from ray.train.v2._internal.execution.failure_handling import FailureDecision

        again = self.reuse.start_again(training_failed_error)
        if again is None:
            return super().make_decision(training_failed_error)  # type: ignore[misc]
        return FailureDecision.RETRY if again else FailureDecision.RAISE


class Place(NamedTuple):
    """The node of a worker."""

    node_id: str
    """Ray's id of it."""
    host: str


_places: list[Place] = []


def places() -> list[Place]:
    """Where the workers of this process's trial are, by their ranks; empty before they are made."""
    return _places


@dataclass
class _Kept:
    """Workers of a trial that ended well, and the actor that synchronises them, for this process's next trial."""

    kind: object
    """The number of workers and the resources of each."""
    workers: list[Any]
    barrier: Any

    def answers(self) -> bool:
        """Whether all of them are alive."""
        asked = [*(worker.actor.get_metadata.remote() for worker in self.workers), self.barrier.get_counter.remote()]
        return _answers(asked) is not None

    def end(self) -> None:
        import ray

        for actor in (*(worker.actor for worker in self.workers), self.barrier):
            ray.kill(actor)

    # `WorkerGroup` makes the actor by SynchronizationActor.options(…).remote(…). These two return the kept one instead.

    def options(self, **_: object) -> _Kept:
        return self

    def remote(self, **_: object) -> Any:
        return self.barrier


_kept: _Kept | None = None


def end_kept_workers() -> None:
    """End the workers that wait in this process for a next trial."""
    global _kept
    kept, _kept = _kept, None
    if kept is not None:
        kept.end()


class Reuse(NamedTuple):
    """Whether workers may train a next trial, and start again in this one."""

    may_serve_again: Callable[[object], bool]
    """Takes the value that a worker's function returned."""
    drop_trial: Callable[[], bool]
    """Called on each worker: makes the process leave its trial soon. Returns whether it may serve again then."""
    between_trials: Callable[[], bool] | None
    """Called on each worker: removes what the trial left behind. Returns whether the process may serve again. None: no
    trial comes after this one."""
    start_again: Callable[[Exception], bool | None]
    """Takes the workers' error. Returns whether new workers start, whatever Ray has counted; None: Ray decides."""


class _KeepsWorkers:
    """Overrides ``WorkerGroup``: its workers use the placement group of this process, which in a trial is Tune's. After
    a trial that ended well, the same processes train the next one.

    So the next trial has Python, torch, CUDA's context and the placement at once. If a process failed, or does not
    leave a stopped trial soon, its whole group is ended.
    """

    _worker_group_context: Any
    _worker_group_state: Any
    _assign_worker_ranks: Callable[..., list[Any]]
    abort: Callable[[], None]
    _taken: _Kept | None
    reuse: Reuse

    def _start_impl(self, builder: object) -> None:
        from ray.train.v2._internal.execution.worker_group import worker_group

        global _kept
        context = self._worker_group_context
        kept, _kept = _kept, None
        kind = (context.num_workers, dict(context.resources_per_worker))
        if kept is not None and not (kept.kind == kind and kept.answers()):
            kept.end()
            kept = None
        self._taken = kept
        made_by_ray = worker_group.SynchronizationActor
        worker_group.SynchronizationActor = kept or made_by_ray
        try:
            super()._start_impl(builder)  # type: ignore[misc]
        except Exception:
            self._worker_group_state = None  # else Ray would not end ranks that could not join each other
            raise
        finally:
            worker_group.SynchronizationActor = made_by_ray
            if self._taken is not None:  # the start failed before it used them
                self._taken.end()

    def _create_placement_group(self, *_: object) -> object:
        import ray
        from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle

        handle: Any = type("BorrowedPlacementGroup", (_Borrowed, DefaultPlacementGroupHandle), {})
        return handle(ray.util.get_current_placement_group())

    def _create_workers(self, *args: object, **more: Any) -> list[Any]:
        taken, self._taken = self._taken, None
        if taken is not None:
            return self._assign_worker_ranks(taken.workers, 0, None, more.get("replica_group_size"))
        made: list[Any] = super()._create_workers(*args, **more)  # type: ignore[misc]
        _places[:] = [Place(worker.metadata.node_id, worker.metadata.hostname) for worker in made]
        return made

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Mapping[str, object] | None) -> dict[str, object]:
        # Workers inherit the job's environment. With another environment they could not use the worker
        # processes that Ray has already started.
        return dict(custom_runtime_env or {})

    def shutdown(self) -> None:
        global _kept
        state = self._worker_group_state
        if state is None:
            super().shutdown()  # type: ignore[misc]
            return
        if not self._ended_well(state.workers):
            self.abort()  # an orderly end would wait half a minute for a frozen rank to leave its process group
            return
        from ray.train.v2._internal.execution.worker_group.state import WorkerGroupState

        class NotEnded(WorkerGroupState):
            def shutdown(self) -> None:
                self.placement_group_handle.shutdown()

        self._worker_group_state = NotEnded(**vars(state))
        super().shutdown()  # type: ignore[misc]
        context = self._worker_group_context
        kept = _Kept((context.num_workers, dict(context.resources_per_worker)), state.workers, state.sync_actor)
        if self.reuse.between_trials and self._all(state.workers, self.reuse.between_trials):
            _kept = kept
        else:
            kept.end()

    def _all(self, workers: list[Any], function: Callable[[], bool], timeout_s: float = ANSWER_S) -> bool:
        """Whether ``function`` returned True on all of them."""
        return all(_answers([worker.execute_async(function) for worker in workers], timeout_s) or [False])

    def _ended_well(self, workers: list[Any]) -> bool:
        """Whether all workers returned normally. In a trial that Tune has stopped they are told to return first.

        It asks the workers, not the group: the group's callbacks would report to Tune for a trial that has ended, and
        wait for ever.
        """
        until = time.monotonic() + LEAVE_S
        if not self._all(workers, self.reuse.drop_trial, LEAVE_S):
            return False
        while (found := _answers([worker.actor.poll_status.remote() for worker in workers], LEAVE_S)) is not None:
            if any(one.error or one.preemption_info for one in found):
                return False
            if not any(one.running for one in found):
                return all(self.reuse.may_serve_again(one.return_value) for one in found)
            if time.monotonic() > until:
                return False
            time.sleep(poll_interval_s(len(workers)) / 5)
        return False


def _answers(asked: list[Any], timeout_s: float = ANSWER_S) -> list[Any] | None:
    """What the actors answered; None if one of them has died, raised an error or takes too long."""
    import ray

    try:
        answers: list[Any] = ray.get(asked, timeout=timeout_s)
    except ray.exceptions.RayError:
        return None
    return answers


class _WithoutActors:
    """Overrides ``TorchTrainer``: its controller runs in the calling process."""

    reuse: Reuse

    def _create_default_callbacks(self) -> list[object]:
        from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
        from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

        # Each of these two would start an actor. The cleaner has nothing to clean, and there are no Ray data sets.
        unneeded = (PlacementGroupCleanerCallback, DatasetsCallback)
        made = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in made if not isinstance(callback, unneeded)]

    def _initialize_and_run_controller(self, **controller_kwargs: object) -> object:
        from ray.train.v2._internal.execution.controller.controller import TrainController
        from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

        group = type("TrialWorkerGroup", (_KeepsWorkers, WorkerGroup), {"reuse": self.reuse})
        controller_of: Any = type("TrialController", (_InTrial, TrainController), {"worker_group_cls": group})
        policy: Any = controller_kwargs["scaling_policy"]
        policy_of = type("TrialScalingPolicy", (_AsksForNothing, type(policy)), {})
        controller_kwargs["scaling_policy"] = policy_of(policy.scaling_config)
        counting: Any = controller_kwargs["failure_policy"]
        decides = type("TrialFailurePolicy", (_Decides, type(counting)), {"reuse": self.reuse})
        controller_kwargs["failure_policy"] = decides(counting.failure_config)

        async def run() -> object:
            controller = controller_of(**controller_kwargs)
            try:
                await controller.run()
                return controller.get_result()
            finally:
                controller.end_workers()

        _stop_requested.clear()
        return asyncio.run(run())


def trainer_in_process(reuse: Reuse) -> Any:
    """``TorchTrainer`` with its controller in the calling process: a Tune trial.

    Its workers train the next trial too if ``reuse`` allows it.
    """
    from ray.train.torch import TorchTrainer

    return type("InlineTorchTrainer", (_WithoutActors, TorchTrainer), {"reuse": reuse})
