"""One trial of a search: a Tune function that builds a ``TorchTrainer``.

Every Python error is reported as a failure with its reason. So Tune sees an error only if a process dies. Such a trial
runs again from its last checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import ray.actor
import ray.tune
from ray.train import UserCallback
from ray.tune import PlacementGroupFactory

from bigbatch.base.waits import TRIAL_END_S
from bigbatch.train_loop.host.node_memory import count_memory_kills
from bigbatch.train_loop.launch import inline_controller, ray_internals
from bigbatch.train_loop.launch.ray_worker import FAILURE, FAILURE_KIND, NODES, RECORDS, RESTARTED
from bigbatch.train_loop.launch.trainer import fit
from bigbatch.train_loop.launch.trial_task import Restarts, TrialTask, failed_end

NODE_ID = "ray.io/node-id"
"""A label that Ray gives to each node: its id."""


class _EndsItsWorkers:
    """A mixin for the Tune trainable: a trial ends only after its workers have ended."""

    def cleanup(self) -> None:
        inline_controller.request_stop()
        with contextlib.suppress(Exception):  # the trial's own errors were reported while it ran
            ray_internals.finish_session(TRIAL_END_S)
        # Tune ends this process, and no other process knows of these workers.
        inline_controller.end_kept_workers()
        super().cleanup()  # type: ignore[misc]

    def reset_config(self, new_config: dict[str, object]) -> bool:
        inline_controller.request_stop()
        if not super().reset_config(new_config):  # type: ignore[misc]
            # Tune tells its searcher nothing of a reset that returns False: the search would wait for ever. It takes an
            # exception for this process's fault and keeps the trial's place. The death of the process it handles.
            ray.actor.exit_actor()
        return True


def run_trial(handed: dict[str, object]) -> None:
    """Train one configuration on the trial's workers and report each epoch to Tune.

    Args:
        handed: a ``TrialTask``, as the dict that Ray Tune carries.
    """
    # The kernel counts since the group began: only later kills can be this trial's.
    kills = count_memory_kills()
    try:
        task = TrialTask.from_dict(handed)
        end = fit(task, _ReportToTune(Restarts(task.restarts, kills)))
    except Exception as error:
        end = failed_end(error, kills)
    if end.failure:
        met = {FAILURE: end.failure, FAILURE_KIND: end.kind, NODES: _nodes(end.rank)}
        ray.tune.report({RECORDS: [], **met})


def _nodes(rank: int | None = None) -> list[dict[str, str]]:
    """The nodes of this process's workers, or of that worker. (Tune would flatten one dict of them.)"""
    places = inline_controller.places()
    return [place._asdict() for place in dict.fromkeys(places if rank is None else places[rank : rank + 1])]


class _ReportToTune(UserCallback):
    """Reports rank 0's metrics to Tune, in this process. The loop reduces metrics, so they are equal on all ranks.

    ``ray.tune.report`` raises SystemExit if Tune has stopped the trial.
    """

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts

    def after_report(self, run_context: object, metrics: list[dict[str, object]], checkpoint: object) -> None:
        ray.tune.report({**metrics[0], NODES: _nodes()})

    def after_exception(self, run_context: object, worker_exceptions: dict[int, Exception]) -> None:
        if why := self._restarts.why(worker_exceptions):
            ray.tune.report({RECORDS: [], RESTARTED: why})


def trainable() -> Callable[[dict[str, object]], None]:
    """``run_trial`` for ``Tuner``, with the resources that each trial's task names."""
    # Tune makes a class of the function, and takes these as further bases of it (function_trainable.py).
    run_trial.__mixins__ = (_EndsItsWorkers,)  # type: ignore[attr-defined]
    return ray.tune.with_resources(run_trial, _resources)


def _resources(handed: dict[str, object]) -> PlacementGroupFactory:
    # An empty first bundle: the trial's own process takes no CPU from the workers.
    task = TrialTask.from_dict(handed)
    elsewhere = [{NODE_ID: f"!in({','.join(task.avoided)})"}] * task.workers
    more = {"bundle_label_selector": elsewhere} if task.avoided else {}
    return PlacementGroupFactory([{}, *[dict(task.worker_resources)] * task.workers], strategy="PACK", **more)
