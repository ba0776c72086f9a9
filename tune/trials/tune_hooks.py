"""What Ray Tune calls while a search runs: a scheduler, a stopper and callbacks that hand everything to the bridge."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import Callback
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.stopper import Stopper

from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.tune.trials.bridge import OptunaBridge
from bigbatch.tune.trials.capacity import Capacity
from bigbatch.tune.watch.display import duration
from bigbatch.tune.watch.watch_thread import Watch

NODES_GONE = "its nodes have gone; it goes on with workers that fit those that are left"


class PrunerScheduler(FIFOScheduler):
    """Stops trials when the bridge, that is Optuna's pruner, says so."""

    def __init__(self, bridge: OptunaBridge, capacity: Capacity) -> None:
        super().__init__()
        self._bridge, self._capacity = bridge, capacity

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        self._give_up_outgrown(tune_controller)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        stop = self._bridge.observe(trial.trial_id, result)
        return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

    def _give_up_outgrown(self, controller: Any) -> None:
        """Take trials from Tune whose workers find no room on the nodes that are left: they would wait for ever.

        They wait in the study instead. The bridge takes them up next, with workers that fit.
        """
        for trial in list(controller.get_trials()):
            if trial.is_finished() or self._capacity.holds(TrialTask.from_dict(trial.config).worker_resources):
                continue
            self._bridge.put_back(trial.trial_id, NODES_GONE)
            # Private names: stop_trial leaves a trial that waits among those for which it would keep processes.
            if trial in controller._staged_trials:
                controller._staged_trials.remove(trial)
                controller._actor_cache.decrease_max(trial.placement_group_factory)
            controller.stop_trial(trial)

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StopWhen(Stopper):
    """Ends the whole search once ``over()`` says so; trials that run then count as interrupted.

    They are first asked to stop by themselves, by ``stop_file``: so they write a checkpoint. Those that have not after
    ``bigbatch.tune.trials.save_time.stop_wait_s`` are stopped.
    """

    def __init__(self, bridge: OptunaBridge, over: Callable[[], bool], stop_file: Path) -> None:
        self._bridge, self._over, self._stop_file = bridge, over, stop_file
        self._asked_at: float | None = None
        self._wait_s = 0.0
        self._gave_up = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._asked_at is None and self._over():
            self._bridge.stopping = True
            with contextlib.suppress(OSError):  # no room: they are stopped after the wait
                self._stop_file.touch()
            self._asked_at, self._wait_s = time.monotonic(), self._bridge.stop_wait_s()
            self._say("to write a checkpoint after the current step", f"waiting up to {duration(self._wait_s)}")
        if self._asked_at is None:
            return False
        overdue = time.monotonic() - self._asked_at > self._wait_s
        if overdue and not self._gave_up:
            self._gave_up = True
            self._say("that did not stop in time", "ended; on --resume they go on from an earlier checkpoint")
        return overdue or not self._bridge.at_work

    def _say(self, which: str, what: str) -> None:
        if self._bridge.at_work:
            self._bridge.say(f"{self._bridge.at_work} running trial(s) {which}: {what}")

    def __getstate__(self) -> dict[str, Any]:
        return {}


class NoEmptyFolders(Callback):
    """Removes the folder that Tune makes of each trial, and leaves empty, when it has ended.

    With its experiment state Tune copies all of them to the study's folder: one more inode a trial, until the end.
    """

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.local_path:
            with contextlib.suppress(OSError):  # it is not there, or not empty
                os.rmdir(trial.local_path)


class Silence(TrialProgressCallback):
    """Tune adds its own, which prints of trials that end without a last result also where verbose is 0."""

    def _print(self, msg: str) -> None:
        pass

    def log_result(self, *_: Any, **__: Any) -> None:
        pass


class Ticks(Callback):
    """Has Tune call ``tick`` in each of its rounds."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._watch.tick()

    def __getstate__(self) -> dict[str, Any]:
        return {}


@contextlib.contextmanager
def memory_kills_fail_trials() -> Iterator[None]:
    """Within it, a trial whose process Ray has ended on a node short of memory has failed like any other.

    It goes on from its checkpoint, or fails for good. Tune (Ray 2.60) knows only processes that died by themselves, and
    ends the whole search for this.
    """
    before = RayActorManager._actor_task_failed

    @functools.wraps(before)
    def failed(self: RayActorManager, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        before(self, tracked_actor_task=tracked_actor_task, exception=exception)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = before
