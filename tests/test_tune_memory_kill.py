"""A node runs short of memory: Ray ends a trial's process, and the search goes on."""

from __future__ import annotations

import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import OutOfMemoryError, RayActorError

from tune.tune_hooks import memory_kills_fail_trials


def test_tune_hears_of_an_ended_process_that_its_trial_has_failed():
    heard: list[Exception] = []
    task = TrackedActorTask(TrackedActor(1), on_error=lambda _, error: heard.append(error))
    manager = RayActorManager(resource_manager=object())
    manager._cleanup_actor = lambda tracked_actor: None
    with memory_kills_fail_trials():
        manager._actor_task_failed(task, OutOfMemoryError("the node was running low on memory"))
        with pytest.raises(RuntimeError):
            manager._actor_task_failed(task, ValueError("something else"))
    assert [type(error) for error in heard] == [RayActorError] and "low on memory" in str(heard[0])
    with pytest.raises(RuntimeError):  # Ray's own again: not a change that a notebook's other searches meet
        manager._actor_task_failed(task, OutOfMemoryError("low"))
