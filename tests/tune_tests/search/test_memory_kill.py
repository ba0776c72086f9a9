"""A node runs short of memory: Ray ends a trial's process, and the search goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import ray
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

from bigbatch.tune.search.tuner import memory_kills_fail_trials


class Actor:
    """Stands for a trial's process, whose task Ray tracks."""

    class train:
        remote = staticmethod(object)


@pytest.mark.parametrize(
    ("error", "as_a_failure"), [(OutOfMemoryError("low"), True), (ActorDiedError(), True), (ValueError("other"), False)]
)
def test_tune_hears_of_an_ended_process_that_its_trial_has_failed(error, as_a_failure, monkeypatch):
    """By the way that a task's error takes in Ray: the future, the callback, the trial."""
    heard: list[Exception] = []
    actor = TrackedActor(1)
    task = TrackedActorTask(actor, on_error=lambda _, error: heard.append(error))
    manager: Any = RayActorManager(resource_manager=object())  # type: ignore[arg-type]  # none is asked
    manager._cleanup_actor = lambda tracked_actor: None
    manager._live_actors_to_ray_actors_resources[actor] = Actor(), None

    def fails(future: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", fails)

    def resolve() -> None:
        _, future = manager._schedule_tracked_actor_task(task, "train", args=(), kwargs={}, _return_future=True)
        manager._actor_task_events.resolve_future(future)

    with memory_kills_fail_trials(), contextlib.nullcontext() if as_a_failure else pytest.raises(RuntimeError):
        resolve()
    assert [isinstance(met, RayActorError) for met in heard] == [True] * as_a_failure
    if isinstance(error, OutOfMemoryError):  # Ray's own again: not a change that a notebook's other searches meet
        with pytest.raises(RuntimeError):
            resolve()
