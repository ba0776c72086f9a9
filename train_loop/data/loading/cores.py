"""How many loader processes a worker may have. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.cluster.host.slurm_values import read_count
from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.host.ranks import tasks_on_this_node

AUTO = -1
MAX_PROCESSES = 32
"""``-1`` begins with at most this many processes: a GPU needs no more, and each costs time and memory to start."""
WORKER_CORES = "BIGBATCH_WORKER_CORES"
"""The cores that Ray has given this worker; ``ray_worker`` sets this variable."""


def loader_workers(config: DataConfig, env: Mapping[str, str] = os.environ) -> int:
    """``data.loader.workers``. For -1, the number with which a run begins: all cores of this rank except one, which
    trains; 0 if there is only one."""
    return config.loader.workers if config.loader.workers != AUTO else min(cores_per_rank(env) - 1, MAX_PROCESSES)


def cores_per_rank(env: Mapping[str, str] = os.environ) -> int:
    """CPU cores that this rank may use, at least 1: the granted cores of this node, shared by the run's ranks here."""
    given, threads = env.get(WORKER_CORES, ""), env.get("OMP_NUM_THREADS", "")
    if given.isdigit():
        return max(int(given), 1)
    if "RAY_JOB_ID" in env and threads.isdigit():  # Ray says there how many cores its worker has, unless the user did
        return max(int(threads), 1)
    usable = usable_cpus(env)
    if "LOCAL_WORLD_SIZE" in env:
        return max(usable // max(int(env["LOCAL_WORLD_SIZE"]), 1), 1)
    if not env.get("SLURM_JOB_ID") or read_count(env.get("SLURM_CPUS_PER_TASK")):  # srun: usable is of each task
        return usable
    if (read_count(env.get("SLURM_STEP_NUM_TASKS")) or 1) > 1:
        # Without core binding each task may run on all that was granted.
        return max(min(usable, (read_count(env.get("SLURM_CPUS_ON_NODE")) or usable) // tasks_on_this_node(env)), 1)
    return usable
