"""The command line and environment that start Ray on one node, with every port and resource explicit.

A node's ports are a free block between 20000 and 30000: above Ray's own defaults, and below the ports that Linux uses
for outgoing connections (32768 and up).
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bigbatch.base import processes
from bigbatch.base.atomic_files import PRIVATE, write_text
from bigbatch.cluster.host import network
from bigbatch.cluster.host.allocation import granted_gpus, usable_cpus, usable_memory_bytes

FIRST_PORT, LAST_PORT = 20000, 30000
ATTEMPTS = 50


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

    def used(self) -> list[int]:
        """The ports that are not 0."""
        return [port for port in asdict(self).values() if port]


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


def free_ports(*, head: bool) -> NodePorts | None:
    """Ports that are all free; None if there are none. Jobs on one node seldom choose the same ones."""
    for _ in range(ATTEMPTS):
        start = random.randrange(FIRST_PORT, LAST_PORT - 8)
        ports = NodePorts(*range(start, start + 8)) if head else NodePorts(0, 0, 0, *range(start, start + 5))
        if not taken_ports(ports):
            return ports
    return None


NODE_PYTHON = "BIGBATCH_NODE_PYTHON"
TOKEN_FILE = "token"
MIB = 2**20
LEAST_OBJECT_STORE = 80 * MIB  # Ray refuses less than 75 MiB
LARGEST_OBJECT_STORE = 1024 * MIB  # configurations and epoch records: kilobytes
HEADROOM = 0.1  # of the memory, for Ray's own processes and the page cache of the control group
LOG_FILE_BYTES = 8 * MIB

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "2",  # stock is 30 s: longer than many sites' KillWait
    "RAY_ROTATION_MAX_BYTES": str(LOG_FILE_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    # Ray's three /metrics servers ask for no token. One has a switch; the other two get a port that no
    # server can have: they log one error and do not start.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "AUTOSCALER_METRIC_PORT": "-1",
    # Ray starts its workers with a niceness of 15. Beside another user's job on the same cores they would get a
    # thirtieth of its time, although the allocation is theirs.
    "RAY_worker_niceness": "0",
    # When a driver joins, Ray would start a process of 80 MB for each core of each node. A search could use none of
    # them, because its processes have variables of their own.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_START_HOOK": "bigbatch.cluster.node.ray_start_hook.before_start",
    "PYTHONUNBUFFERED": "1",
}

# A user's shell or another job may have set these: processes would then join the other cluster (ray #60991).
OTHER_CLUSTER_VARIABLES = (
    "RAY_ADDRESS",
    "RAY_AUTH_",
    "RAY_TMPDIR",
    "RAY_NAMESPACE",
    "RAY_JOB_",
)


@dataclass(frozen=True)
class NodeResources:
    """The resources that one node gives to Ray."""

    cpus: int
    gpus: int
    memory_bytes: int
    object_store_bytes: int


def node_resources() -> NodeResources:
    """This step's part of the node: what Slurm granted, never all that the host shows."""
    granted = usable_memory_bytes()
    store = max(LEAST_OBJECT_STORE, min(LARGEST_OBJECT_STORE, granted // 10, _shared_memory_bytes() // 2))
    memory = int(granted * (1 - HEADROOM)) - store
    return NodeResources(usable_cpus(), granted_gpus(), max(memory, 100 * MIB), store)


def make_token(folder: Path) -> Path:
    """Write a new 256-bit token into the job's folder. It never appears on a command line or in a log."""
    write_text(folder / TOKEN_FILE, secrets.token_hex(32), mode=PRIVATE)
    return folder / TOKEN_FILE


def ray_environment(address: str, token: Path) -> dict[str, str]:
    """This process's environment, with all variables that a process of this cluster needs.

    Every process needs RAY_ADDRESS: without it Ray's clean-up may ask another cluster on the same host.
    """
    left_out = (*OTHER_CLUSTER_VARIABLES, *processes.NOT_FOR_RAY)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    # With the token a Ray process shows that it is the job's, and demands the same of others.
    token_variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    values = {**inherited, **SETTINGS, **token_variables, "RAY_ADDRESS": address}
    values |= network.interface_variables(values)
    return {**values, **network.no_proxy_variables([address.rpartition(":")[0]], values)}


def ray_python() -> str:
    """The Python that has Ray: this one, or the one in the container (``in_container.sh``).

    The job's own processes run outside the container, because they need Slurm's commands, which an image lacks.
    """
    return os.environ.get(NODE_PYTHON) or sys.executable


def in_container_if_any(command: Sequence[str]) -> list[str]:
    """The command line that runs a user's own command: inside the container, if there is one, as the search does."""
    inside = os.environ.get(NODE_PYTHON)
    return [inside, "--command", *command] if inside else list(command)


def ray_start_command(
    ip: str,
    gcs: str,
    ports: NodePorts,
    share: NodeResources,
    folder: Path,
    name: str,
) -> list[str]:
    """``ray start`` in the foreground; as the head if ``ports`` has a GCS port.

    Args:
        ip: this node's address, as the other nodes reach it.
        gcs: ``ip:port`` of the head's GCS.
        folder: Ray's temporary folder.
        name: Slurm's name of this node. With it the search counts the nodes that Ray lacks.
    """
    head = [
        # Anyone who reaches the dashboard can run code in the cluster (CVE-2023-48022). Users reach it by a tunnel.
        *("--head", f"--port={ports.gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports.dashboard}"),
        *(f"--ray-client-server-port={ports.client}", "--no-monitor"),  # the monitor would only scale the cluster
    ]
    return [
        # The interpreter's own Ray: the first on PATH may be that of another environment.
        *(ray_python(), "-m", "ray.scripts.scripts", "start"),
        *(head if ports.gcs else [f"--address={gcs}"]),
        f"--node-ip-address={ip}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        *("--min-worker-port=0", "--max-worker-port=0"),  # the kernel finds free ones
        # Ray would count all CPUs, GPUs and memory that the host shows, not those that Slurm has granted.
        f"--num-cpus={share.cpus}",
        f"--num-gpus={share.gpus}",
        f"--memory={share.memory_bytes}",
        f"--object-store-memory={share.object_store_bytes}",
        f"--temp-dir={folder}",
        f"--labels=slurm_node={name}",
        *("--disable-usage-stats", "--block"),
    ]


def _shared_memory_bytes() -> int:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return LARGEST_OBJECT_STORE * 2
    return stat.f_bavail * stat.f_frsize
