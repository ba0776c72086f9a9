"""How many loader processes a worker may have. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cluster.allocation import usable_cpus
from train_loop.config import DataConfig

AUTO = -1


def loader_workers(config: DataConfig, env: Mapping[str, str] = os.environ) -> int:
    """``data.loader_workers``; for -1, the cores of this rank but one, which trains; 0 where there is one alone."""
    return config.loader_workers if config.loader_workers != AUTO else cores_a_rank(env) - 1


def cores_a_rank(env: Mapping[str, str] = os.environ) -> int:
    """CPU cores that this rank may use, at least 1: what is granted on this node, shared among the run's ranks here."""
    threads = env.get("OMP_NUM_THREADS", "")
    if "RAY_JOB_ID" in env and threads.isdigit():  # Ray says there how many cores its worker has
        return max(int(threads), 1)
    if env.get("SLURM_JOB_ID") and env.get("SLURM_CPUS_PER_TASK", "").isdigit() and "LOCAL_WORLD_SIZE" not in env:
        return usable_cpus(env)  # srun: of each task
    return max(usable_cpus(env) // max(int(env.get("LOCAL_WORLD_SIZE", "1")), 1), 1)
