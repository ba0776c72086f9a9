"""The nodes that a search may use, how they are divided into workers of concurrent trials, and how many share a GPU."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.cluster.host.allocation import planned_nodes, usable_cpus, usable_memory_bytes
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.ranks import memory_part
from bigbatch.train_loop.launch.local_workers import local_gpu_count

WORKER_MEMORY_BYTES = 2 * 2**30
"""Memory reserved for a worker on a machine without GPUs. ResNet-18 in float32 with micro-batch 256 takes 1.3 GB."""
LEAST_MEMORY_BYTES = 1300 * 10**6
"""A node with less memory than this is used only if no node has more."""
USED_WELL = 0.9
"""A cut with a better number of trials is chosen if it uses at least this part of the most cores that any cut uses."""


@dataclass(frozen=True)
class Node:
    """Resources of one node. ``gpu_memory_bytes`` is the memory of its smallest GPU; 0 = not known."""

    cpus: int
    gpus: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0

    def describe(self) -> str:
        """E.g. ``4 GPUs of 80 GB and 32 CPU cores``, ``2 CPU cores and 2.1 GB``."""
        cores = f"{self.cpus} CPU core{'s' * (self.cpus != 1)}"
        if not self.gpus:
            return f"{cores} and {self.memory_bytes / 1e9:.1f} GB"
        size = f" of {self.gpu_memory_bytes / 1e9:.3g} GB" if self.gpu_memory_bytes else ""
        return f"{self.gpus} GPU{'s' * (self.gpus != 1)}{size} and {cores}"


@dataclass(frozen=True)
class Machine:
    """The nodes that the search may use: this machine, or the nodes of a cluster. No nodes: not known yet."""

    nodes: tuple[Node, ...] = ()

    @property
    def cpus(self) -> int:
        """CPU cores of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    @property
    def accelerator(self) -> str:
        """``cuda`` or ``cpu``."""
        return "cuda" if self.gpus else "cpu"

    @property
    def device_memory_bytes(self) -> int:
        """Memory of the smallest device that a worker may get: a GPU, or without GPUs a node. 0 = not known."""
        if self.gpus:
            return min((node.gpu_memory_bytes for node in self.nodes if node.gpu_memory_bytes), default=0)
        return min((node.memory_bytes for node in _with_memory(self.nodes)), default=0)

    def describe(self) -> str:
        """The nodes, with equal ones counted: ``2 nodes with 4 GPUs and 32 CPU cores, a node with …``."""
        kinds = Counter(node.describe() for node in self.nodes).most_common()
        return ", ".join(f"{f'{count} nodes' if count > 1 else 'a node'} with {kind}" for kind, count in kinds)

    def to_dict(self) -> dict[str, object]:
        """For study.json: totals, and each kind of node with its count."""
        kinds = [{"count": count, **vars(node)} for node, count in Counter(self.nodes).items()]
        return {"cpus": self.cpus, "gpus": self.gpus, "nodes": kinds}


@dataclass(frozen=True)
class Share:
    """How the machine is divided: concurrent trials, workers of each trial, resources of each worker."""

    concurrency: int
    workers: int
    worker_resources: dict[str, float]
    per_gpu: int = 1
    """Trials that share each GPU."""

    @property
    def devices(self) -> float:
        """Devices that one trial holds: one for each worker, a part of one where trials share a GPU."""
        return self.workers / self.per_gpu

    def describe(self) -> str:
        """E.g. ``2 trials at a time, each with 1 worker of 1 CPU``."""
        at_once = f"{self.concurrency} trial{'s' * (self.concurrency != 1)} at a time"
        each = " + ".join(
            f"{value / 1e9:.1f} GB" if kind == "memory" else f"{value:g} {kind}"
            for kind, value in self.worker_resources.items()
        )
        return f"{at_once}, each with {self.workers} worker{'s' * (self.workers != 1)} of {each}"

    def fits(self, machine: Machine) -> bool:
        """Whether one trial fits on an otherwise idle ``machine``."""
        return sum(workers_on_node(node, self.worker_resources) for node in machine.nodes) >= self.workers


def local_machine() -> Machine:
    """This machine; in a Slurm allocation, the part of it that the allocation grants.

    Raises ConfigError if that has GPUs and torch can use none of them.
    """
    gpus, gpu_memory = local_gpu_count(), 0
    if gpus:
        import torch

        gpu_memory = min((torch.cuda.get_device_properties(i).total_memory for i in range(gpus)), default=0)
    return Machine((Node(usable_cpus(), gpus, usable_memory_bytes(), gpu_memory),))


def machine_to_be() -> Machine:
    """The known nodes of a cluster that is not joined yet. Their memory is never known."""
    nodes, cpus, gpus = planned_nodes() or (0, 0, 0)
    return Machine((Node(cpus, gpus),) * nodes)


def workers_on_node(node: Node, bundle: dict[str, float]) -> int:
    """How many workers with the resources ``bundle`` fit on ``node``. Ray counts to four decimal places, as here."""
    have = {"CPU": node.cpus, "GPU": node.gpus, "memory": node.memory_bytes}
    return min((round(have[kind] * 1e4) // round(value * 1e4) for kind, value in bundle.items() if value), default=0)


def first_share(machine: Machine, workers: int, trials: int, open_ended: bool, per_gpu: int) -> Share:
    """``share_out`` as a search begins. Where a budget is the only limit, ``trials`` is a guess: it bounds no GPU."""
    at_once = max(trials, machine.gpus * per_gpu) if open_ended else trials
    return share_out(machine, workers, at_once, per_gpu)


def share_out(machine: Machine, workers: int, trials: int, per_gpu: int = 1) -> Share:
    """Divide the machine into concurrent trials and workers. Raises ConfigError if one trial does not fit.

    All workers have the same resources. A worker runs on one node; a trial may use several nodes. With GPUs, each
    worker has one GPU and as many cores as every node can give to each of its GPUs, so that no GPU stays unused; nodes
    without GPUs are not used. ``per_gpu`` trials share each GPU and its cores. Without GPUs, a worker has whole cores,
    as many as use the machine well.
    """
    unit, have = ("GPUs", machine.gpus) if machine.gpus else ("CPU cores", machine.cpus)
    if workers > have:
        fix = f"Write --workers {have} or fewer." if have else "Write --address of a cluster that has some."
        raise ConfigError(f"--workers must be at most {have}, the number of {unit}; got {workers}. {fix}")
    if machine.gpus:
        at_once = min(machine.gpus * per_gpu // workers, trials)
        gpu = math.floor(1e4 / per_gpu) / 1e4  # as Ray counts: three thirds must not be more than one
        return Share(at_once, workers, {**_cores_of_worker(machine, per_gpu), "GPU": gpu}, per_gpu)
    return _share_of_cores(machine, workers, trials)


def _cores_of_worker(machine: Machine, per_gpu: int) -> dict[str, float]:
    """Cores of each worker on a GPU. With fewer cores than workers: a part of one, rounded down to four decimals."""
    node = min((node for node in machine.nodes if node.gpus), key=lambda node: node.cpus / node.gpus)
    workers = node.gpus * per_gpu
    cores = float(node.cpus // workers) or math.floor(1e4 * node.cpus / workers) / 1e4
    return {"CPU": cores} if cores else {}  # a node may offer GPUs and no core


def _share_of_cores(machine: Machine, workers: int, trials: int) -> Share:
    """The division of a machine without GPUs. It first uses as many cores as possible.

    Among such divisions it prefers at most a quarter of the trials at once, so that early stopping can learn.
    """
    nodes = _with_memory(machine.nodes)
    memory = min([WORKER_MEMORY_BYTES, *(node.memory_bytes for node in nodes)])
    usual = max(2, trials // 4)
    cuts = _cuts(nodes, memory, workers, trials, usual)
    if not cuts:  # the memory of one trial may not suffice: try it rather than refuse it
        nodes, memory = list(machine.nodes), 0
        cuts = _cuts(nodes, 0, workers, 1, usual)
    most = max(cores * trials_at_once for cores, trials_at_once in cuts)
    good = [cut for cut in cuts if cut[0] * cut[1] >= USED_WELL * most]
    cores, concurrency = max(good, key=lambda cut: (cut[1] <= usual, cut[1] if cut[1] <= usual else -cut[1], cut[0]))
    bundle = {"CPU": float(cores)}
    bounded = {**bundle, "memory": float(memory)}
    # Ray limits memory only if workers ask for it. On one node the number of trials limits it already.
    if (
        len(machine.nodes) > 1
        and memory
        and any(workers_on_node(n, bundle) > workers_on_node(n, bounded) for n in machine.nodes)
    ):
        bundle = bounded
    return Share(concurrency, workers, bundle)


def _with_memory(nodes: tuple[Node, ...]) -> list[Node]:
    """The nodes with cores and enough memory for a worker; if there is none, all nodes with cores."""
    with_cores = [node for node in nodes if node.cpus]
    return [node for node in with_cores if node.memory_bytes >= LEAST_MEMORY_BYTES] or with_cores


def _cuts(nodes: Sequence[Node], memory: int, workers: int, trials: int, usual: int) -> list[tuple[int, int]]:
    """All divisions that fit, as (cores of a worker, concurrent trials): with the most trials, and with ``usual``."""
    kinds, cuts = Counter(nodes).items(), set()
    for cores in range(1, max(node.cpus for node in nodes) + 1):
        bundle = {"CPU": float(cores), "memory": float(memory)}
        most = min(sum(workers_on_node(node, bundle) * count for node, count in kinds) // workers, trials)
        cuts |= {(cores, most), (cores, min(most, usual))} if most else set()
    return sorted(cuts)


def devices_held(machine: Machine, share: Share | None) -> int:
    """Devices that a search holds on its own machine: all GPUs, also idle ones; else its concurrent workers."""
    if machine.gpus or share is None:
        return machine.gpus
    return share.concurrency * share.workers


AUTO = "auto"
MOST = 4
"""No more trials share a GPU: each has a CUDA context, a process and loader processes of its own."""
AT_MOST = "trials_per_gpu_at_most"
"""The key of study.json with ``GpuSharing.at_most``."""


@dataclass(frozen=True)
class GpuSharing:
    """What was asked for, and what the study has found out."""

    asked: int | None = 1
    """None: ``auto``."""
    at_most: int = MOST
    """Fewer than ``MOST`` once a trial ran out of memory beside another one. A resume keeps it."""

    @property
    def at_first(self) -> int:
        """How many trials share a GPU when the search begins."""
        return max(1, min(self.asked or 1, self.at_most))

    def without(self, too_many: int) -> GpuSharing:
        """The same, if ``too_many`` trials on a GPU are known to be too many."""
        return dataclasses.replace(self, at_most=max(1, min(self.at_most, too_many - 1)))

    def words(self, machine: Machine, share: Share) -> str:
        """A sentence for the plan, with how many and why; empty where nobody asked, or there is no GPU to share."""
        if self.asked == 1 or (machine.nodes and not machine.gpus) or share.workers > 1:
            return ""
        if self.at_most < (self.asked or 2):
            trials = f"{self.at_first} trial{'s' * (self.at_first != 1)}"
            return f"{trials} on each GPU: in this study {self.at_most + 1} had too little memory"
        if self.asked is None:
            return (
                f"1 trial on each GPU at first, later up to {self.at_most}: as many as have room in memory, computing "
                "time and cores by the records of the trials that have ended (--trials-per-gpu auto)"
            )
        part = 100 * memory_part(self.at_first)
        return (
            f"{self.at_first} trials share each GPU (--trials-per-gpu): each has at most {part:.0f} % of its memory, "
            f"and counts 1/{self.at_first} of its hours and energy. If one has too little memory, fewer share"
        )


def read_trials_per_gpu(text: str | None, workers: int) -> int | None:
    """The number, 1 if none is given; None for ``auto``. Raises ConfigError.

    Args:
        workers: of each trial. Several need GPUs of their own: Ray may give parts of one GPU to two of them, and NCCL
            refuses two ranks on the same GPU.
    """
    if text is None or text.strip() == AUTO:
        return None if text else 1
    if text.strip() not in map(str, range(1, MOST + 1)):
        raise ConfigError(
            f"--trials-per-gpu must be {AUTO} or a number from 1 to {MOST}; got {text!r}. Write --trials-per-gpu 2."
        )
    number = int(text)
    if number > 1 and workers > 1:
        raise ConfigError(
            f"--trials-per-gpu {number} is for trials of one worker: NCCL wants each worker of a trial on a GPU of its "
            f"own; got --workers {workers}. Leave one of the two out."
        )
    return number
