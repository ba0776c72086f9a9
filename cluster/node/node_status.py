"""What a job and its nodes say to each other through small files: how a node stands, and what it is to do.

Nodes may be started from a clone that was updated after the job was: fields of another version are passed over, and
those that are missing have a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bigbatch.cluster.host import json_values
from bigbatch.cluster.host.atomic_files import read_json
from bigbatch.cluster.node.ports import NodePorts


@dataclass(frozen=True)
class NodeStatus:
    """How a node stands: its step writes it, the job reads it."""

    run_id: str
    """The start of the job to which the node belongs."""
    job: str = ""
    """The Slurm job that owns the node; another than the cluster's where the node is lent."""
    state: str = ""
    """``starting``, ``ready``, ``failed`` or ``ended``; empty before the first report."""
    beat: int = 0
    """Counts the reports: it goes on while the node's step lives."""
    time: float = 0.0
    """Of the report, seconds since the epoch."""
    ip: str = ""
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    object_store_bytes: int = 0
    ports: NodePorts | None = None
    """Of Ray on this node, once it is ready."""
    folder: str = ""
    """Private to the node, on its own disk."""
    signalled: bool = False
    """Slurm has sent SIGTERM to the step."""
    reason: str | None = None
    """Why it failed."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> NodeStatus:
        ports = json_values.mapping(values, "ports")
        return cls(
            run_id=json_values.text(values, "run_id"),
            job=json_values.text(values, "job"),
            state=json_values.text(values, "state"),
            beat=json_values.whole_number(values, "beat"),
            time=json_values.number(values, "time"),
            ip=json_values.text(values, "ip"),
            cpus=json_values.whole_number(values, "cpus"),
            gpus=json_values.whole_number(values, "gpus"),
            memory_bytes=json_values.whole_number(values, "memory_bytes"),
            object_store_bytes=json_values.whole_number(values, "object_store_bytes"),
            ports=NodePorts.from_dict(ports) if ports else None,
            folder=json_values.text(values, "folder"),
            signalled=json_values.flag(values, "signalled"),
            reason=json_values.text_or_none(values, "reason"),
        )

    @classmethod
    def read(cls, path: Path) -> NodeStatus | None:
        """None where nothing was reported yet, or the report cannot be read."""
        values = read_json(path)
        return cls.from_dict(values) if values else None


@dataclass(frozen=True)
class NodeOrders:
    """What the nodes of one start of a job are to do: the job writes it, their steps read it."""

    run_id: str = ""
    stop: bool = False
    """End now."""
    hold: bool = False
    """Do not obey Slurm's SIGTERM for now: trials still save."""
    keep_logs: bool = False
    """Keep Ray's logs when the node ends."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> NodeOrders:
        return cls(
            run_id=json_values.text(values, "run_id"),
            stop=json_values.flag(values, "stop"),
            hold=json_values.flag(values, "hold"),
            keep_logs=json_values.flag(values, "keep_logs"),
        )

    @classmethod
    def read(cls, path: Path) -> NodeOrders | None:
        """None where there are no orders, or they cannot be read for a moment."""
        values = read_json(path)
        return cls.from_dict(values) if values else None


@dataclass(frozen=True)
class RayNode:
    """A living node as Ray's GCS knows it: the process that asks Ray writes it, the job reads it."""

    id: str
    ip: str
    cpus: int
    gpus: int
    job: str
    """The Slurm job that lends it."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> RayNode:
        return cls(
            id=json_values.text(values, "id"),
            ip=json_values.text(values, "ip"),
            cpus=json_values.whole_number(values, "cpus"),
            gpus=json_values.whole_number(values, "gpus"),
            job=json_values.text(values, "job"),
        )
