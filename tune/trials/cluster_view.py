"""Ask Ray about its nodes and waiting placement groups, with a timeout, and put the answer into words.

Ray's State API needs the dashboard, and Ray's other calls wait a minute for a dead head. So this module asks the head
(GCS) through Ray's own client, which has a timeout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbatch.base.waits import RAY_ANSWER_S
from bigbatch.train_loop.launch.ray_internals import head_client

ALIVE = 0
"""State of a living node: gcs.proto, GcsNodeInfo.ALIVE."""
PLACED = ("CREATED", "REMOVED")
INFEASIBLE = "INFEASIBLE"
NAMES = {"CPU": "CPU", "GPU": "GPU"}
SLACK = 1e-6
"""Ray counts resources in ten thousandths."""


@dataclass(frozen=True)
class NodeView:
    """A node as Ray's head knows it."""

    name: str
    alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    died_of: str = ""


@dataclass(frozen=True)
class GroupView:
    """A placement group of this driver that Ray has not placed yet."""

    bundles: tuple[Mapping[str, float], ...]
    state: str
    """PENDING; or RESCHEDULING after a node was lost."""
    verdict: str
    """Ray's last verdict: QUEUED, NO_RESOURCES, INFEASIBLE …"""


@dataclass(frozen=True)
class ClusterView:
    """The cluster at one moment."""

    nodes: tuple[NodeView, ...]
    groups: tuple[GroupView, ...] = ()

    @property
    def living(self) -> tuple[NodeView, ...]:
        """The nodes that are alive."""
        return tuple(node for node in self.nodes if node.alive)


class RayHead:
    """The head of the cluster that this process has joined."""

    def __init__(self) -> None:
        import ray

        context = ray.get_runtime_context()
        self.address: str = context.gcs_address
        self._job = context.get_job_id()
        self._client = head_client(self.address)

    def ask(self) -> ClusterView:
        """The cluster now. Without an answer within ``RAY_ANSWER_S``, raises the error of Ray's transport."""
        usage = self._client.get_all_resource_usage(timeout=RAY_ANSWER_S).resource_usage_data
        free = {node.node_id: dict(node.resources_available) for node in usage.batch}
        nodes = [
            NodeView(
                name=f"{node.node_manager_hostname} ({node.node_manager_address})",
                alive=node.state == ALIVE,
                total=dict(node.resources_total),
                free=free.get(node_id.binary(), {}),
                died_of=node.death_info.reason_message,
            )
            for node_id, node in self._client.get_all_node_info(timeout=RAY_ANSWER_S).items()
        ]
        groups = [_group(row) for row in usage.placement_group_load.placement_group_data]
        # A joined cluster may hold placement groups of other drivers.
        own = [group for job, group in groups if job == self._job and group.state not in PLACED]
        return ClusterView(tuple(nodes), tuple(own))


def _group(row: Any) -> tuple[str, GroupView]:
    """The job and the placement group of one row of Ray's answer (gcs.proto, PlacementGroupTableData)."""
    bundles = tuple(dict(bundle.unit_resources) for bundle in row.bundles)
    state = row.PlacementGroupState.Name(row.state)
    return row.creator_job_id.hex(), GroupView(
        bundles, state, row.stats.SchedulingState.Name(row.stats.scheduling_state)
    )


def why_it_fits_nowhere(group: GroupView, nodes: Sequence[NodeView]) -> str | None:
    """Why the group does not fit on the living nodes even when they are idle; None if it fits, or may fit."""
    living = [node for node in nodes if node.alive]
    if not living:
        return "no node is alive"
    for bundle in group.bundles:
        if not any(_times(bundle, node.total) for node in living):
            return f"a worker needs {resources_in_words(bundle)}, and no node has that ({_each(living, bundle)})"
    first = group.bundles[0]
    if all(bundle == first for bundle in group.bundles):
        room = sum(_times(first, node.total) for node in living)
        if room < len(group.bundles):
            each = resources_in_words(first)
            return f"{len(group.bundles)} workers need {each} each, and the nodes have room for {room}"
    return None


def why_it_waits(group: GroupView, view: ClusterView) -> str:
    """Why Ray has not placed a group, in words."""
    impossible = why_it_fits_nowhere(group, view.nodes)
    lost = "one of its nodes was lost, and " if group.state == "RESCHEDULING" else ""
    if impossible:
        return f"{lost}its placement group is {INFEASIBLE}: {impossible}"
    requested = _sum(group.bundles)
    free = _sum([node.free for node in view.living])
    total = _sum([node.total for node in view.living])
    shown = ", ".join(
        f"{_number(free.get(key, 0))} of {resources_in_words({key: total.get(key, 0)})} free" for key in requested
    )
    return (
        f"{lost}its placement group is {group.state} ({group.verdict}): {resources_in_words(requested)} asked, {shown}"
    )


def trial_resources_in_words(workers: int, worker_resources: Mapping[str, float]) -> str:
    """The total needs of a trial's workers: ``2 GPUs``, or without GPUs ``4 CPUs``."""
    key = "GPU" if worker_resources.get("GPU") else "CPU"
    return resources_in_words({key: worker_resources.get(key, 0) * workers})


def resources_in_words(resources: Mapping[str, float]) -> str:
    """``{"CPU": 2.0, "GPU": 1.0}`` → ``2 CPUs and 1 GPU``."""
    parts = []
    for key, value in resources.items():
        name = NAMES.get(key)
        parts.append(f"{_number(value)} {name}{'' if value == 1 else 's'}" if name else f"{_number(value)} of {key!r}")
    return " and ".join(parts)


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _times(bundle: Mapping[str, float], total: Mapping[str, float]) -> int:
    """How many times a bundle fits into a node."""
    needs = [(value, total.get(key, 0.0)) for key, value in bundle.items() if value > 0]
    # Whatever needs nothing fits any number of times.
    return min((math.floor(have / value + SLACK) for value, have in needs), default=2**31)


def _each(nodes: Sequence[NodeView], bundle: Mapping[str, float]) -> str:
    """The nodes' amounts of the requested resources: ``2 nodes with 1 CPU``."""
    counts: dict[str, int] = {}
    for node in nodes:
        had = resources_in_words({key: node.total.get(key, 0.0) for key in bundle})
        counts[had] = counts.get(had, 0) + 1
    return ", ".join(f"{n} node{'s' if n > 1 else ''} with {had}" for had, n in counts.items())


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    together: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            together[key] = together.get(key, 0.0) + value
    return together
