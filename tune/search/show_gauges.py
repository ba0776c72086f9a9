"""``--metrics-port``: the gauges of a search, for Prometheus."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rich.console import Console

from bigbatch.train_loop.launch import gauges
from bigbatch.train_loop.launch.gauges import GaugeBoard
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.running import SearchRun, views_of
from bigbatch.tune.study.metrics_targets import TARGETS_FILE, TargetsFile, metrics_targets
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch.findings import quoted_path
from bigbatch.tune.watch.observer import Observer
from bigbatch.tune.watch.study_gauges import StudyGauges
from bigbatch.tune.watch.wrapped import say


def gauge_observers(run: SearchRun, store: StudyStore, stack: ExitStack, console: Console) -> list[Observer]:
    """The observer that sets a search's gauges; none without ``--metrics-port``, or if its cluster shows no metrics.

    Call it when Ray runs. A cluster without metrics is only a warning: a search must not end for lack of a picture.
    """
    plan = run.plan
    if plan.options.metrics_port is None:
        return []
    import ray

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
    run.shows_gauges = True

    def look(board: GaugeBoard) -> None:
        file.look()
        observer.look()
        _set_budget(board, plan, store.ledger.held_s, ends_at)

    board = GaugeBoard(look)
    observer = StudyGauges(board, plan.study, plan.objectives.first, views_of(store))
    stack.enter_context(board)
    return [observer]


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


def _set_budget(board: GaugeBoard, plan: SearchPlan, held_s: float, ends_at: float | None) -> None:
    board.set(gauges.USED_HOURS, held_s / 3600, study=plan.study)
    if plan.budget_gpu_hours is not None:
        board.set(gauges.HOURS_LEFT, max(0.0, plan.budget_gpu_hours - held_s / 3600), study=plan.study)
    if ends_at is not None:
        board.set(gauges.TIME_LEFT, max(0.0, ends_at - time.monotonic()), study=plan.study)
