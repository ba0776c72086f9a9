"""Choose the ports of a job's Ray processes: a block derived from the job id, so that jobs on one node seldom collide.

Blocks lie between 20000 and 32000: above Ray's own defaults, and below the ports that Linux uses for outgoing
connections (32768 and up). A block is probed before use. If one of its ports is taken, the next attempt uses
another block.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from bigbatch.base import json_values

FIRST_PORT = 20000
BLOCK = 24
BLOCKS = 500
ATTEMPTS = 8
STRIDE = 211  # coprime with BLOCKS: attempts of one job visit every block


@dataclass(frozen=True)
class NodePorts:
    """Ports of one node's processes. A worker has no ``gcs``, ``dashboard`` and ``client``: they are 0."""

    gcs: int
    dashboard: int
    client: int
    node_manager: int
    object_manager: int
    runtime_env_agent: int
    agent_grpc: int
    agent_http: int

    def to_dict(self) -> dict[str, int]:
        """The ports by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> NodePorts:
        """Those of ``to_dict``; a port that is missing is 0."""
        return cls(**{field.name: json_values.whole_number(values, field.name) for field in fields(cls)})

    def used(self) -> list[int]:
        """The ports that are not 0."""
        return [port for port in asdict(self).values() if port]


def ports_of(job_id: str, attempt: int, *, head: bool) -> NodePorts:
    """The block that a job uses at its ``attempt``-th try. Head and workers share no port."""
    start = FIRST_PORT + (int(job_id) + attempt * STRIDE) % BLOCKS * BLOCK
    if head:
        return NodePorts(*range(start, start + 8))
    return NodePorts(0, 0, 0, *range(start + 12, start + 17))


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port``, on every interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: an old connection of a job that has just ended must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def taken_ports(ports: NodePorts) -> list[int]:
    """The ports on which another program listens."""
    return [port for port in ports.used() if not is_free(port)]


def free_ports(job_id: str, first_attempt: int, *, head: bool) -> tuple[int, NodePorts] | None:
    """The first attempt from ``first_attempt`` on whose ports are all free, and those; None if there is none."""
    for attempt in range(first_attempt, ATTEMPTS):
        ports = ports_of(job_id, attempt, head=head)
        if not taken_ports(ports):
            return attempt, ports
    return None
