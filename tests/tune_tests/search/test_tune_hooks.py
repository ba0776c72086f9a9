"""The scheduler gives up trials whose workers no longer fit, and reads nothing else of their tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bigbatch.tune.plan.machine import Node, Share
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.tuner import NODES_LOST, PrunerScheduler


class Bridge:
    """Notes which trials are put back into the study."""

    def __init__(self) -> None:
        self.put: list[tuple[str, str]] = []

    def put_back(self, trial_id: str, why: str) -> None:
        self.put.append((trial_id, why))


class Controller:
    """The part of Tune's controller that the scheduler uses. Its trials wait."""

    def __init__(self, cpus: dict[str, float]) -> None:
        self.trials = [
            SimpleNamespace(
                trial_id=name,
                config={"worker_resources": {"CPU": count}},  # no configuration: it must not be parsed for this
                is_finished=lambda: False,
                status="RUNNING",
                placement_group_factory=None,
            )
            for name, count in cpus.items()
        ]
        self._staged_trials = list[Any]()
        self.stopped: list[str] = []

    def get_trials(self) -> list[Any]:
        return self.trials

    get_live_trials = get_trials

    def stop_trial(self, trial: Any) -> None:
        self.stopped.append(trial.trial_id)


def given_up(capacity: Capacity) -> tuple[list[tuple[str, str]], list[str]]:
    bridge, controller = Bridge(), Controller({"small": 2.0, "large": 8.0})
    scheduler: Any = PrunerScheduler(bridge, capacity)  # type: ignore[arg-type]
    assert scheduler.choose_trial_to_run(controller) is None, "no trial is pending"
    return bridge.put, controller.stopped


def test_only_trials_that_no_longer_fit_are_given_up() -> None:
    capacity = Capacity(Share(1, 1, {"CPU": 8.0}), 8, nodes=lambda: {"n1": Node(4, 0, 2**34)})
    assert given_up(capacity) == ([("large", NODES_LOST)], ["large"])


def test_no_trial_is_given_up_where_nodes_never_change() -> None:
    assert given_up(Capacity(Share(1, 1, {"CPU": 8.0}), 8)) == ([], [])
