"""What the search may use, and how it is cut into workers of trials that run side by side."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from cluster.allocation import accelerator_files, usable_cpus, usable_memory_bytes
from train_loop.config import ConfigError

TRIAL_MEMORY_BYTES = 2 * 2**30
"""What a trial's worker may take on a CPU-only machine: ResNet-18, micro-batch 256, float32, measured 1.3 GB."""


@dataclass(frozen=True)
class Machine:
    """What the search may use: of this machine, or of the cluster that it joins."""

    cpus: int
    gpus: int
    memory_bytes: int
    gpu_memory_bytes: int = 0

    @property
    def accelerator(self) -> str:
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True)
class Share:
    """How the machine is cut: trials side by side, workers a trial, resources a worker."""

    concurrency: int
    workers: int
    worker_resources: dict[str, float]


def local_machine() -> Machine:
    """This machine, or the part of it that the allocation grants."""
    gpus, gpu_memory = 0, 0
    if accelerator_files() or os.environ.get("CUDA_VISIBLE_DEVICES"):
        import torch

        gpus = torch.cuda.device_count()
        gpu_memory = min((torch.cuda.get_device_properties(i).total_memory for i in range(gpus)), default=0)
    return Machine(usable_cpus(), gpus, usable_memory_bytes(), gpu_memory)


def share_out(machine: Machine, workers: int, trials: int) -> Share:
    """Trials side by side and resources a worker. Raises ConfigError if one trial does not fit.

    With GPUs a worker has one, and its share of the cores. Without, a worker has whole cores, and
    so many trials run side by side that early stopping still learns from earlier ones (at most a
    quarter of them) and memory holds.
    """
    unit, have = ("GPUs", machine.gpus) if machine.gpus else ("CPU cores", machine.cpus)
    if workers > have:
        raise ConfigError(
            f"--workers must be at most the {unit} there are; got {workers}, there are {have}. "
            f"Write --workers {max(have, 1)} or fewer."
        )
    slots = have // workers
    if machine.gpus:
        # With fewer cores than GPUs a worker gets a part of one, rounded down to Ray's four digits.
        cpus = machine.cpus // machine.gpus or math.floor(1e4 * machine.cpus / machine.gpus) / 1e4
        return Share(min(slots, trials), workers, {"CPU": float(cpus), "GPU": 1.0})
    by_memory = max(1, machine.memory_bytes // (TRIAL_MEMORY_BYTES * workers))
    concurrency = max(1, min(slots, by_memory, max(2, trials // 4), trials))
    cpus = max(1, machine.cpus // (concurrency * workers))
    return Share(concurrency, workers, {"CPU": float(cpus)})
