"""``--metrics-port``: hands the gauges of a search to Ray, which shows them and its own to Prometheus."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from bigbatch.tune.console.findings import quoted_path
from bigbatch.tune.console.wrapped import say
from bigbatch.tune.export.grafana_files import TARGETS_FILE, TargetsFile, metrics_targets
from bigbatch.tune.export.study_gauges import HOURS_LEFT, TIME_LEFT, USED_HOURS, Series, StudyGauges
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.observer import Observer
from bigbatch.tune.search.running import SearchRun, views_of
from bigbatch.tune.storage.store import StudyStore

REFRESH_S = 1.0
"""Ray hands a value to Prometheus once, and forgets it: so each is set again, more often than Ray exports. Ray has no
call that removes a series; one that is not set any more is gone after two of Ray's export intervals, 10 s each."""
JOIN_S = 5.0
_log = logging.getLogger(__name__)


def gauge_observers(run: SearchRun, store: StudyStore, stack: ExitStack, console: Console) -> list[Observer]:
    """The observer that sets a search's gauges; none without ``--metrics-port``, or if its cluster shows no metrics.

    Call it when Ray runs. A cluster without metrics is only a warning: a search must not end for lack of a picture.
    """
    plan = run.plan
    if plan.options.metrics_port is None:
        return []
    import ray
    from ray.util.metrics import Gauge

    nodes = ray.nodes()
    targets = metrics_targets(nodes)
    file, ends_at = TargetsFile(store.folder, ray.nodes, time.monotonic), _ends_at(run)
    if targets:  # before the line that names the file
        file.look()
        stack.callback(file.close)
    for line in _words(plan, targets, sum(bool(node["Alive"]) for node in nodes)):
        say(console, line)
    if not targets:
        return []
    gauges = StudyGauges(plan.study, plan.objectives.first, views_of(store))
    in_ray: dict[str, Any] = {}

    def look() -> None:
        file.look()
        for kind, value, tags in (*gauges.values(), *_budget(plan, store.ledger.held_s, ends_at)):
            if value is not None and not math.isnan(value):
                if kind.name not in in_ray:
                    in_ray[kind.name] = Gauge(kind.name, kind.meaning, kind.tags)
                in_ray[kind.name].set(value, dict(zip(kind.tags, tags, strict=True)))

    over = threading.Event()
    thread = threading.Thread(target=_keep_looking, args=(look, over), daemon=True, name="gauges")
    thread.start()
    stack.callback(thread.join, JOIN_S)
    stack.callback(over.set)  # before the join
    return [gauges]


def _keep_looking(look: Callable[[], None], over: threading.Event) -> None:
    """Look every REFRESH_S. A failure is said once: a picture of the search must never end the search."""
    said: set[str] = set()
    while not over.wait(REFRESH_S):
        try:
            look()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in said:
                said.add(text)
                _log.warning("the gauges for Prometheus are not set: %s", text)


def _words(plan: SearchPlan, targets: tuple[str, ...], nodes: int) -> list[str]:
    """What is shown, where, and to whom. ``nodes``: how many the cluster has."""
    if not targets:
        return [
            f"warning: no node of the cluster at {plan.address} shows metrics: the port is taken there, or Ray was "
            "started without --metrics-export-port. The search goes on without them.\n"
        ]
    local = plan.address == "local"
    where = f"http://{targets[0]}/metrics" if len(targets) == 1 else f"{targets[0]} and {len(targets) - 1} more nodes"
    who = "on this machine" if local else "who reaches these nodes over the network"
    silent = f"warning: {nodes - len(targets)} of {nodes} nodes show no metrics: the port is taken there."
    return [
        *([silent] if len(targets) < nodes else []),
        f"Metrics for Prometheus: {where}. Ray asks for no token there: everybody {who} can read them.",
        f"Its targets: {quoted_path(plan.folder / TARGETS_FILE)}\n",
    ]


def _ends_at(run: SearchRun) -> float | None:
    return None if run.plan.time_budget_s is None else run.started + run.plan.time_budget_s


def _budget(plan: SearchPlan, held_s: float, ends_at: float | None) -> Iterator[Series]:
    tags = (plan.study,)
    yield USED_HOURS, held_s / 3600, tags
    if plan.budget_gpu_hours is not None:
        yield HOURS_LEFT, max(0.0, plan.budget_gpu_hours - held_s / 3600), tags
    if ends_at is not None:
        yield TIME_LEFT, max(0.0, ends_at - time.monotonic()), tags
