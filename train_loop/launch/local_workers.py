"""The workers of a full run on this machine: their highest number, and their resources. Loads torch only with GPUs."""

from __future__ import annotations

import math
import re

from bigbatch.cluster.host.allocation import accelerator_files, granted_gpus, usable_cpus
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.ranks import Launch


def worker_count(asked: int | None, launch: Launch | None) -> int:
    """The number of data-parallel workers: the requested one, or that of torchrun or srun.

    Raises ConfigError if these differ.
    """
    if asked is not None and asked < 1:
        raise ConfigError(f"--workers must be at least 1; got {asked}. Write --workers 1.")
    if launch is None:
        return asked or 1
    if asked not in (None, launch.world_size):
        raise ConfigError(
            f"{launch.by} started {launch.world_size} workers; got --workers {asked}. Leave --workers out."
        )
    return launch.world_size


def check_workers_fit_machine(workers: int) -> None:
    """Raise ConfigError for more workers than this machine, or the allocation, has GPUs or CPU cores."""
    cpus, gpus = usable_cpus(), local_gpu_count()
    unit, have = ("GPUs", gpus) if gpus else ("CPU cores", cpus)
    if workers > have:
        raise ConfigError(
            f"--workers must be at most {have}, the number of {unit}; got {workers}. Write --workers {have} or fewer."
        )


def worker_resources(workers: int, cpus: int, gpus: int) -> dict[str, float]:
    """What Ray reserves for a worker: with GPUs one and its share of the cores, else its share of the cores."""
    parts = gpus or workers
    # With fewer cores than GPUs a worker gets a part of one, rounded down to Ray's four digits.
    cores = float(cpus // parts) or math.floor(1e4 * cpus / parts) / 1e4
    return {"CPU": cores} | ({"GPU": 1.0} if gpus else {})


def local_gpu_count() -> int:
    """The GPUs that torch can use here. Asks torch, which loads slowly, only where there may be one.

    Raises ConfigError if Slurm or CUDA_VISIBLE_DEVICES gives this process GPUs and torch can use none: it would train
    on the CPUs while the GPUs are billed.
    """
    granted = granted_gpus()
    if not granted and not accelerator_files():
        return 0
    import torch

    why = why_no_gpu()
    if granted and why:
        raise ConfigError(f"torch must be able to use the {granted} GPU(s) given here; got {why}. {GPU_FIX}")
    # Only now: while CUDA is not in use, torch asks NVML, which counts GPUs that this process may not open as well.
    return 0 if why else torch.cuda.device_count()


GPU_FIX = (
    "Install a torch for this GPU and driver (pytorch.org/get-started), or set CUDA_VISIBLE_DEVICES= to train on CPUs."
)


def unused_gpus() -> str | None:
    """A sentence if this machine has a GPU that torch cannot use, else None."""
    if not accelerator_files() or local_gpu_count():
        return None
    return f"Training runs on the CPUs: torch can use no GPU here ({why_no_gpu()})."


def why_no_gpu() -> str:
    """Why torch can use no GPU here, in its own words where it says so; empty if it can."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        return re.split(r"\.\s+(?=[A-Z])|\n", str(error).strip())[0].rstrip(".")
    oldest = min(map(int, re.findall(r"_(\d+)", " ".join(torch.cuda.get_arch_list()))), default=0)
    major, minor = torch.cuda.get_device_capability(0)
    if 10 * major + minor < oldest:  # torch only warns, and the first kernel fails
        return f"the GPU is sm_{major}{minor}, and this torch has code for sm_{oldest} and newer"
    return ""
