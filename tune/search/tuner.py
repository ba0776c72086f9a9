"""Hands a search to Ray Tune, which runs its trials until the bridge has enough of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import ray.tune

from bigbatch.train_loop.launch.trial_task import leave_images
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.tune_hooks import (
    PrunerScheduler,
    RemoveEmptyTrialFolders,
    SilentProgress,
    StopWhen,
    TickCallback,
    memory_kills_fail_trials,
)
from bigbatch.tune.search.watch_thread import SearchWatch
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials import trial_run
from bigbatch.tune.trials.bridge import OptunaBridge


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
            scheduler=PrunerScheduler(bridge, capacity),
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
            callbacks=[SilentProgress(), RemoveEmptyTrialFolders(), TickCallback(watch)],
        ),
    )
    try:
        with memory_kills_fail_trials():
            tuner.fit()
    finally:
        with store.disk.quietly():  # --resume puts back what this cannot
            bridge.release()
        store.stop_file.unlink(missing_ok=True)
        shutil.rmtree(ray_storage, ignore_errors=True)
