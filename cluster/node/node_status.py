"""The small files through which a job and its nodes communicate: a node's status, and the job's orders.

A node may run from a clone that was updated after the job started. So unknown fields are ignored, and missing fields
have a default. A node hangs if its heartbeat stops while those of others continue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values, waits
from bigbatch.base.atomic_files import read_json
from bigbatch.base.json_values import read_fields
from bigbatch.cluster.node.ray_commands import NodePorts


@dataclass(frozen=True)
class NodeStatus:
    """The status of a node. Its step writes it; the job reads it."""

    run_id: str
    """The start of the job to which the node belongs."""
    state: str = ""
    """``starting``, ``ready``, ``failed`` or ``ended``; empty before the first report."""
    beat: int = 0
    """Counts the reports, and so grows while the node's step lives."""
    time: float = 0.0
    """Time of the report, seconds since the epoch."""
    ip: str = ""
    cpus: int = 0
    gpus: int = 0
    ports: NodePorts | None = None
    """Ports of Ray on this node, from its start on."""
    folder: str = ""
    """The private folder on the node's own disk."""
    signalled: bool = False
    """Whether Slurm has sent SIGTERM to the step."""
    reason: str | None = None
    """Why the node failed; in the state ``starting``: why Ray's last start failed, which is tried again."""

    @classmethod
    def read(cls, path: Path) -> NodeStatus | None:
        """Read a report. None if there is none yet, or it cannot be read."""
        values = read_json(path)
        ports = json_values.mapping(values, "ports")
        known = read_fields(NodePorts, ports) if ports else None
        return read_fields(cls, values, ports=known) if values else None


@dataclass(frozen=True)
class NodeOrders:
    """Orders to the nodes of one start of a job. The job writes them; the nodes' steps read them."""

    run_id: str = ""
    stop: bool = False
    """End now."""
    hold: bool = False
    """Do not obey Slurm's SIGTERM for now: trials still save."""
    keep_logs: bool = False
    """Keep Ray's logs when the node ends."""
    address: str = ""
    """``ip:port`` of the head's GCS; empty until Ray runs there."""

    @classmethod
    def read(cls, path: Path) -> NodeOrders | None:
        """Read the orders. None if there are none, or they cannot be read at the moment."""
        values = read_json(path)
        return read_fields(cls, values) if values else None


HUNG_S = float(os.environ.get("BIGBATCH_HUNG_S") or waits.HUNG_S)
HEARTBEAT_S = min(waits.HEARTBEAT_S, HUNG_S / 4)


class Heartbeats:
    """Remembers when each node's heartbeat last changed. Call ``hung`` often."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at = 0.0

    def hung(self, beats: Mapping[str, int], limit_s: float = HUNG_S) -> list[str]:
        """Nodes that have reported once and whose heartbeat has stopped while others continue.

        If all have stopped, the shared file system is the cause: a full quota, or a server that does not answer.

        Args:
            beats: each node's last heartbeat; 0: it has not reported yet.
            limit_s: without a heartbeat for this long a node is hung.
        """
        now = time.monotonic()
        if now - self._looked_at > limit_s / 2:  # suspended until now, as others may have been (`scontrol suspend`)
            self._seen.clear()
        self._looked_at = now
        for name, beat in beats.items():
            if name not in self._seen or self._seen[name][0] != beat:
                self._seen[name] = (beat, now)
        still = {name: now - self._seen[name][1] for name, beat in beats.items() if beat}
        if not any(seconds < limit_s / 2 for seconds in still.values()):
            return []
        return [name for name, seconds in still.items() if seconds > limit_s]
