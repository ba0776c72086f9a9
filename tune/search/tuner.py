"""Hands a search to Ray Tune, which runs its trials until the bridge has enough of them.

The hooks that Ray Tune calls meanwhile, a scheduler, a stopper and callbacks, call the bridge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import ray
import ray.tune
from ray.exceptions import RayActorError
from ray.tune import Callback
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.stopper import Stopper

from bigbatch.train_loop.config.words import amount
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.host.node_memory import NODE_MEMORY_FIX
from bigbatch.train_loop.launch import ray_internals
from bigbatch.train_loop.launch.trial_task import leave_images
from bigbatch.tune.console.display import duration
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.watch_thread import SearchWatch
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials import trial_run
from bigbatch.tune.trials.bridge import OptunaBridge

NODES_LOST = "its nodes are gone; it continues with workers that fit the remaining nodes"


class MemoryKill(RayActorError):
    """Ray ended a trial's process, because its node ran short of memory."""


class StopScheduler(FIFOScheduler):
    """Stops a trial when the bridge says so, which asks the strategy."""

    def __init__(self, bridge: OptunaBridge, capacity: Capacity) -> None:
        super().__init__()
        self._bridge, self._capacity = bridge, capacity

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """First give up trials that no longer fit; then choose as Tune's FIFO scheduler."""
        self._give_up_outgrown(tune_controller)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: dict[str, object]) -> str:
        """Pass the result to the bridge. Returns STOP or CONTINUE."""
        stop = self._bridge.observe(trial.trial_id, result)
        return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Tell the bridge if Ray ended the trial's own process for lack of memory; Tune only says that it ended."""
        error: object = None
        # Tune hands no exception on; it keeps it in this file.
        if trial.pickled_error_file:
            with contextlib.suppress(OSError), open(trial.pickled_error_file, "rb") as file:
                error = ray.cloudpickle.load(file)
        if isinstance(error, MemoryKill):
            because = f"the node's memory was nearly used up, and Ray ended the trial's process. {NODE_MEMORY_FIX}"
            self._bridge.fail(trial.trial_id, because, FailureKind.NODE_MEMORY)
        super().on_trial_error(tune_controller, trial)

    def _give_up_outgrown(self, controller: TuneController) -> None:
        """Take from Tune the trials whose workers do not fit on the remaining nodes: they would wait for ever.

        They wait in the study instead. The bridge starts them again, with workers that fit.
        """
        for trial in list(controller.get_trials()):
            # Only these keys: TrialTask.from_dict checks the whole configuration, and Tune calls this often.
            resources, avoided = trial.config["worker_resources"], trial.config.get("avoided", ())
            if trial.is_finished() or self._capacity.holds(resources, avoided):
                continue
            ray_internals.unstage(controller, trial)
            self._bridge.put_back(trial.trial_id, NODES_LOST)
            controller.stop_trial(trial)

    def __getstate__(self) -> dict[str, object]:
        # Tune pickles its scheduler for a restore that this project never uses.
        return {}


class StopWhen(Stopper):
    """Ends the whole search when ``over()`` returns True. Trials that still run then count as interrupted.

    ``stop_file`` first asks them to stop by themselves, with a checkpoint. Trials that have not stopped after
    ``bigbatch.tune.trials.live_trials.stop_wait_s`` are ended.
    """

    def __init__(self, bridge: OptunaBridge, over: Callable[[], bool], stop_file: Path) -> None:
        self._bridge, self._over, self._stop_file = bridge, over, stop_file
        self._asked_at: float | None = None
        self._wait_s = 0.0
        self._gave_up = False

    def __call__(self, trial_id: str, result: dict[str, object]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Whether Tune should end all trials now. The first time the search is over, asks the trials to stop."""
        if self._asked_at is None and self._over():
            self._bridge.stopping = True
            with contextlib.suppress(OSError):  # the disk is full: the trials are ended after the wait
                self._stop_file.touch()
            self._asked_at, self._wait_s = time.monotonic(), self._bridge.stop_wait_s()
            self._say("to write a checkpoint after the current step", f"waiting up to {duration(self._wait_s)}")
        if self._asked_at is None:
            return False
        overdue = time.monotonic() - self._asked_at > self._wait_s
        if overdue and not self._gave_up:
            self._gave_up = True
            self._say("that did not stop in time", "ended; --resume continues them from an earlier checkpoint")
        return overdue or not self._bridge.at_work

    def _say(self, which: str, what: str) -> None:
        if self._bridge.at_work:
            self._bridge.say(f"{amount(self._bridge.at_work, 'running trial')} {which}: {what}")

    def __getstate__(self) -> dict[str, object]:
        # Tune pickles this for a restore that this project never uses.
        return {}


class TickAndTidy(Callback):
    """Lets Tune call ``tick`` in each of its rounds, and removes the empty folder of each trial that has ended.

    Tune would copy all these folders with its experiment state: one more inode for each trial.
    """

    def __init__(self, watch: SearchWatch) -> None:
        self._watch = watch

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """Call ``tick``."""
        self._watch.tick()

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Remove the trial's folder if it is empty."""
        if trial.local_path:
            with contextlib.suppress(OSError):  # it is not there, or not empty
                os.rmdir(trial.local_path)

    def __getstate__(self) -> dict[str, object]:
        # As above: nothing of it is ever restored.
        return {}


class SilentProgress(TrialProgressCallback):
    """Replaces Tune's own reporter, which prints even with verbose 0 if a trial ends without a last result."""

    def on_trial_result(self, *_: object, **__: object) -> None:
        """Print nothing."""

    def on_trial_error(self, *_: object, **__: object) -> None:
        """Print nothing."""

    def on_trial_complete(self, *_: object, **__: object) -> None:
        """Print nothing."""


def memory_kills_fail_trials() -> contextlib.AbstractContextManager[None]:
    """Within the block, a trial whose process Ray ended for lack of memory counts as any other failed trial.

    It continues from its checkpoint, or fails for good. Without this, Tune (Ray 2.60) would end the whole search.
    """
    return ray_internals.memory_kills_as(lambda message: MemoryKill(error_msg=message))


def run_tuner(
    plan: SearchPlan,
    bridge: OptunaBridge,
    capacity: Capacity,
    store: StudyStore,
    watch: SearchWatch,
    over: Callable[[], bool],
    ray_storage: Path,
) -> None:
    """Let Ray Tune run until enough trials have ended, or ``over()`` is true. Trials that then still run are put back.

    Args:
        over: called often; whether the search should end now.
        ray_storage: the folder for Ray's own files; it is removed at the end.
    """
    store.stop_file.unlink(missing_ok=True)  # of a killed search: each trial would stop after a step
    leave_images(plan.scan, ray_storage)
    tuner = ray.tune.Tuner(
        trial_run.trainable(),
        tune_config=ray.tune.TuneConfig(
            search_alg=bridge,
            scheduler=StopScheduler(bridge, capacity),
            num_samples=-1,  # the bridge decides when there are enough
            # A new process for each trial would load Python, torch and CUDA's context again (docs/decisions/002).
            reuse_actors=True,
            trial_name_creator=lambda t: t.trial_id,
            trial_dirname_creator=lambda t: t.trial_id,  # Tune's own have the parameters in them
        ),
        run_config=ray.tune.RunConfig(
            name="search",
            storage_path=str(ray_storage),
            stop=StopWhen(bridge, over, store.stop_file),
            failure_config=ray.tune.FailureConfig(max_failures=plan.restarts),
            verbose=0,  # the search has a display of its own
            callbacks=[SilentProgress(), TickAndTidy(watch)],
        ),
    )
    try:
        with memory_kills_fail_trials(), ray_internals.quick_start_of_trials():
            tuner.fit()
    finally:
        with store.disk.quietly():  # --resume puts back what this cannot
            bridge.release()
        store.stop_file.unlink(missing_ok=True)
        shutil.rmtree(ray_storage, ignore_errors=True)
