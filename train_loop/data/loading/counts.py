"""How many processes and batch slots a loader has. No torch.

An image does not depend on the process that decodes it. There are enough slots that no process waits for one, and not
more than fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bigbatch.cluster.host.allocation import usable_cpus, usable_memory_bytes
from bigbatch.cluster.host.slurm_commands import read_count
from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.host.ranks import tasks_on_this_node

AUTO = -1
MAX_PROCESSES = 32
"""``-1`` is at most this many processes: a GPU needs no more, and each costs time and memory to start."""
WORKER_CORES = "BIGBATCH_WORKER_CORES"
"""The cores that Ray has given this worker; ``ray_worker`` sets this variable."""


def loader_workers(config: DataConfig, env: Mapping[str, str] = os.environ) -> int:
    """``data.loader.workers``. For -1 all cores of this rank except one, which trains; 0 if there is only one."""
    return config.loader.workers if config.loader.workers != AUTO else min(cores_per_rank(env) - 1, MAX_PROCESSES)


def cores_per_rank(env: Mapping[str, str] = os.environ) -> int:
    """CPU cores that this rank may use, at least 1: the granted cores of this node, shared by the run's ranks here."""
    given, threads = env.get(WORKER_CORES, ""), env.get("OMP_NUM_THREADS", "")
    if given.isdigit():
        return max(int(given), 1)
    if "RAY_JOB_ID" in env and threads.isdigit():  # Ray writes its worker's cores there, unless the user has set it
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


MIN_SLOTS = 4
"""With fewer slots, batches are copied out or processes stand still: the consumer holds one slot, the next batch is
complete, and processes write into two."""
USUAL_SLOTS = 8
"""The usual minimum: training on a GPU holds three slots, two are never given away, processes write into the others."""
MAX_SLOTS = 32
MEMORY_SHARE = 1 / 8
"""The part of a rank's memory that slots may take."""


def slot_count(needed: int, slot_bytes: int, memory_bytes: int) -> int:
    """Slots of a loader.

    Args:
        needed: the number with which all loader processes have work.
        slot_bytes: size of a batch's pixels and indices.
        memory_bytes: memory of this rank.
    """
    room = max(int(memory_bytes * MEMORY_SHARE) // slot_bytes, MIN_SLOTS)
    return min(max(needed, USUAL_SLOTS), MAX_SLOTS, room)


def memory_per_rank_bytes(env: Mapping[str, str] = os.environ) -> int:
    """Bytes of this node's memory that this rank may use: the granted memory, shared by the run's ranks here.

    The slots' memory has no name and is not bounded by ``/dev/shm``; it counts as the process's.
    """
    memory = usable_memory_bytes(env)
    if env.get("LOCAL_WORLD_SIZE", "").isdigit():
        return memory // max(int(env["LOCAL_WORLD_SIZE"]), 1)
    if "RAY_JOB_ID" in env:  # Ray gives a worker cores; memory follows them
        return int(memory * min(cores_per_rank(env) / usable_cpus(env), 1.0))
    of_a_task = not env.get("SLURM_MEM_PER_NODE") and env.get("SLURM_CPUS_PER_TASK")  # memory a CPU, of a task's CPUs
    if env.get("SLURM_JOB_ID") and not of_a_task:
        return memory // max(tasks_on_this_node(env), 1)
    return memory
