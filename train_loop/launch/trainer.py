"""The ``TorchTrainer`` of a trial or of a full run, with its controller in a process that has other work too."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bigbatch.train_loop.host.node_memory import count_memory_kills
from bigbatch.train_loop.launch import inline_controller, ray_internals
from bigbatch.train_loop.launch.ray_worker import between_trials, drop_trial, may_serve_again, train_worker
from bigbatch.train_loop.launch.trial_task import Restarts, StartsAgain, TrialTask, WorkersEnd
from bigbatch.train_loop.launch.worker_lines import NOTES, append_line

if TYPE_CHECKING:  # they import Ray, and the trainer torch, which a search's own process does not need
    from ray.train import RunConfig, ScalingConfig, UserCallback
    from ray.train.torch import TorchTrainer

POLL_S = 0.25
"""Seconds after which a driver that waits for its run checks again whether it must leave."""
FAILED_STARTS = 20
"""How often the start of a run's workers may fail, or wait a minute for their place. Ray would repeat it for ever."""


def make_trainer(
    train_function: Callable[[dict[str, object]], object],
    train_config: dict[str, object],
    scaling_config: ScalingConfig,
    run_config: RunConfig,
    start_again: Callable[[Exception], bool | None] = lambda error: None,
    last: bool = False,
) -> TorchTrainer:
    """The trainer for workers in the placement group of the calling actor.

    The controller's coroutine runs in the caller's thread. Workers that leave a run in order train this process's
    next one, unless this is its ``last``. docs/decisions/002 says why.
    """
    reuse = inline_controller.Reuse(may_serve_again, drop_trial, None if last else between_trials, start_again)
    return inline_controller.trainer_in_process(reuse)(
        train_function, train_loop_config=train_config, scaling_config=scaling_config, run_config=run_config
    )


def fit(task: TrialTask, callback: UserCallback | None = None) -> WorkersEnd:
    """Start the workers, and restart them after one of them has died. Returns what ``train_worker`` returned.

    ``callback`` gets each report. Without one this is a full run, whose records file gets the reason of each restart.
    Raises what Ray Train raises if the workers failed.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    ray_internals.set_poll_interval(task.workers)
    scaling = ScalingConfig(
        num_workers=task.workers,
        use_gpu="GPU" in task.worker_resources,
        resources_per_worker=dict(task.worker_resources),
    )
    run = RunConfig(
        name=task.name,
        storage_path=str(task.ray_storage),
        failure_config=FailureConfig(max_failures=task.restarts, controller_failure_limit=FAILED_STARTS),
        callbacks=[callback or _notes_restarts(task)],
    )
    try:
        again = StartsAgain(task.checkpoint_dir)
        trainer = make_trainer(train_worker, task.to_dict(), scaling, run, again, last=callback is None)
        return trainer.fit().return_value or WorkersEnd()
    finally:
        # Nobody reads these three files again, and a search of a thousand trials could exceed a quota of inodes.
        shutil.rmtree(task.ray_storage / task.name, ignore_errors=True)


def _notes_restarts(task: TrialTask) -> UserCallback:
    from ray.train import UserCallback

    class NotesRestarts(UserCallback):
        restarts = Restarts(task.restarts, count_memory_kills())

        def after_exception(self, run_context: object, worker_exceptions: dict[int, Exception]) -> None:
            if task.records_file and (why := self.restarts.why(worker_exceptions)):
                number = f"{self.restarts.number} of at most {self.restarts.most} times"
                again = f"the workers start again ({number}), from the last checkpoint if there is one: {why}"
                append_line(task.records_file, {NOTES: [again]})

    return NotesRestarts()


def fit_from_driver(task: TrialTask, leaving: threading.Event) -> WorkersEnd:
    """``fit`` for a process that is not a Ray actor, such as the driver of a full run. Loads no torch here.

    Once ``leaving`` is set, it ends the workers and returns soon. If a thread called Ray after another thread had shut
    it down, Ray would end the process with exit code 1.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([dict(task.worker_resources)] * task.workers, strategy="PACK")
    place = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    controller: Any = ray.remote(num_cpus=0, scheduling_strategy=place)(_Controller).remote()
    try:
        answer = controller.fit.remote(task.to_dict())
        while not ray.wait([answer], timeout=POLL_S)[0]:
            if leaving.is_set():
                return WorkersEnd(stopped=True)
        end: WorkersEnd | Exception = ray.get(answer)
    finally:
        ray.kill(controller)  # and with it the workers that it keeps
        ray.util.remove_placement_group(group)
    if isinstance(end, Exception):
        raise end
    return end


class _Controller:
    """An actor: the process of a full run in which Ray Train's controller runs."""

    def fit(self, handed: dict[str, object]) -> WorkersEnd | Exception:
        try:
            return fit(TrialTask.from_dict(handed))
        except Exception as error:  # Ray would wrap it once more
            return error
