"""This process's place: which of several training processes it is, its part of a GPU, the cores beside it. No torch.

``torchrun`` sets the variables that torch.distributed reads. Under ``srun`` they are derived from Slurm's,
as IDRIS's idr_torch does (http://www.idris.fr/eng/jean-zay/gpu/jean-zay-gpu-torch-multi-eng.html): rank
from SLURM_PROCID, world size from the step's tasks, the master is the step's first node, and its port
follows from the ids of job and step, so that two jobs that share a node do not meet. Cores are beside a GPU where a
node has several parts with memory of their own (NUMA).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Set
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host.slurm_commands import first_host, per_node, read_count
from bigbatch.train_loop.config import ConfigError

FIRST_PORT, PORTS = 15000, 5000
"""Below the ports that the kernel gives to clients, and different from those of a job's Ray cluster."""
HOST_SUFFIX = "BIGBATCH_HOST_SUFFIX"
"""This variable's value is appended to the master's name if a site's fast network has other names (JUWELS: ``i``)."""


@dataclass(frozen=True)
class Launch:
    """This process's place among the processes that were started together."""

    by: str
    """``torchrun`` or ``srun``."""
    rank: int
    local_rank: int
    world_size: int
    on_node: int
    """Processes of this run on this node."""
    master: tuple[str, int] | None = None
    """Host and port where ranks meet; None if torchrun has already given them to torch."""

    def announce(self, env: MutableMapping[str, str] = os.environ) -> None:
        """Set what ``torch.distributed.init_process_group`` reads."""
        if self.master is not None:
            host, port = self.master
            env.update(MASTER_ADDR=host, MASTER_PORT=str(port))
            env.update(RANK=str(self.rank), WORLD_SIZE=str(self.world_size), LOCAL_RANK=str(self.local_rank))


def find_launch(env: Mapping[str, str] = os.environ) -> Launch | None:
    """How this process was started together with others; None if it was started alone.

    An ``srun`` of one task counts as alone: it may be an interactive shell, or run a Ray cluster's driver.
    Raises ConfigError if the variables of torchrun or Slurm are incomplete or wrong.
    """
    try:
        return _launched(env)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"the variables of torchrun or srun must be complete; got {type(error).__name__}: {error}. "
            "Unset RANK, WORLD_SIZE, LOCAL_RANK and SLURM_STEP_NUM_TASKS, or start it with torchrun or srun."
        ) from None


def _launched(env: Mapping[str, str]) -> Launch | None:
    if all(name in env for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        rank, workers, on_node = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_WORLD_SIZE", "1"))
        if not 0 <= rank < workers:  # it would wait for others that never come
            raise ValueError(f"RANK={rank} of WORLD_SIZE={workers}")
        return Launch("torchrun", rank, int(env["LOCAL_RANK"]), workers, on_node)
    tasks = read_count(env.get("SLURM_STEP_NUM_TASKS")) or 1
    if tasks < 2 or "SLURM_PROCID" not in env:
        return None
    host = env.get("MASTER_ADDR") or first_host(env["SLURM_STEP_NODELIST"]) + env.get(HOST_SUFFIX, "")
    port = int(env.get("MASTER_PORT") or rendezvous_port(int(env["SLURM_JOB_ID"]), int(env.get("SLURM_STEP_ID", "0"))))
    return Launch(
        "srun", int(env["SLURM_PROCID"]), int(env["SLURM_LOCALID"]), tasks, tasks_on_this_node(env), (host, port)
    )


def rendezvous_port(job_id: int, step_id: int) -> int:
    """The port where the ranks meet: the same on all of them, and different for almost every other job step."""
    # Ids of jobs follow each other: 7 apart, the first steps of two jobs do not meet.
    return FIRST_PORT + (job_id * 7 + step_id) % PORTS


def tasks_on_this_node(env: Mapping[str, str]) -> int:
    """This node's number of tasks in ``SLURM_STEP_TASKS_PER_NODE``, e.g. ``4(x2),1``."""
    counts = per_node(env.get("SLURM_STEP_TASKS_PER_NODE")) or [1]
    node = read_count(env.get("SLURM_NODEID")) or 0
    return counts[node] if node < len(counts) else counts[-1]


SHARED_BY = "BIGBATCH_TRIALS_PER_GPU"
"""``ray_worker`` sets this variable."""
SPARE = 0.1
"""The part of a shared GPU's memory that no trial's tensors may take: each process has a CUDA context beside them."""


def trials_on_gpu(env: Mapping[str, str] = os.environ) -> int:
    """The trials that share this process's GPU, with its own; 1: it has the GPU alone, or trains on a CPU."""
    number = env.get(SHARED_BY, "")
    return max(int(number), 1) if number.isdigit() else 1


def memory_part(trials: int) -> float:
    """The part of a GPU's memory that the tensors of each of ``trials`` that share it may take."""
    return 1.0 if trials == 1 else (1 - SPARE) / trials


def sharing_of(gpus: float) -> int:
    """The trials that share a GPU if a worker of each has ``gpus`` of it; 1 for a whole GPU, or none."""
    return round(1 / gpus) if 0 < gpus < 1 else 1


SWITCH = "BIGBATCH_NEAR_CORES"
"""0: workers stay on all cores that the job has."""


def stay_near(gpu: str, cores: int, env: Mapping[str, str] = os.environ, sysfs: Path = Path("/sys")) -> None:
    """Keep this thread, and all threads and processes that it starts, on the cores of ``near_cores``."""
    if env.get(SWITCH) == "0" or not hasattr(os, "sched_setaffinity"):
        return
    if near := near_cores(gpu, cores, os.sched_getaffinity(0), sysfs):
        os.sched_setaffinity(0, near)


def near_cores(gpu: str, cores: int, allowed: Set[int], sysfs: Path = Path("/sys")) -> set[int]:
    """The part of ``allowed`` that is on the GPU's NUMA node, divided among all GPUs there: each has its own cores.

    Empty if this gains nothing, because the cores are on one node already (e.g. Slurm has bound them), or loses
    something, because the part has fewer cores than the worker was given. Threads of one core stay together.

    Args:
        gpu: its PCI address, such as ``0000:dc:00.0``.
        cores: how many the worker was given.
        allowed: the cores that this process may use; the result has no others.
    """
    devices = sysfs / "bus/pci/devices"
    place = _facts(devices / gpu)
    beside = sorted(one.name for one in devices.glob("*") if _facts(one) == place)
    here = _cores_in(sysfs / f"devices/system/node/node{place[0]}/cpulist") & allowed
    if gpu not in beside or not here or here == allowed:
        return set()
    whole: dict[int, set[int]] = {}
    for core in sorted(here):
        siblings = _cores_in(sysfs / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        whole.setdefault(min(siblings | {core}), set()).add(core)
    parts, number, count = list(whole.values()), beside.index(gpu), len(beside)
    mine = set().union(*parts[len(parts) * number // count : len(parts) * (number + 1) // count])
    return mine if len(mine) >= cores else set()


def _facts(device: Path) -> tuple[str, str, str]:
    """NUMA node, maker and kind of a PCI device: alike for the same kind of GPU on a node."""
    node, vendor, kind = (_read(device / name) for name in ("numa_node", "vendor", "class"))
    return node, vendor, kind


def _cores_in(file: Path) -> set[int]:
    """``0-3,8`` as numbers."""
    ranges = [part.partition("-") for part in _read(file).split(",") if part]
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
