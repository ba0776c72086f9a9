"""How many batch slots a loader has: enough that none is waited for, and no more memory than is there. No torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from bigbatch.cluster.host.allocation import usable_cpus, usable_memory_bytes
from bigbatch.train_loop.data.loading.cores import cores_per_rank
from bigbatch.train_loop.host.ranks import tasks_on_this_node

AUTO = 0
MIN_SLOTS = 4
"""With fewer slots, batches are copied out or processes stand still: the consumer holds one slot, the next batch is
complete, and processes write into two."""
USUAL_SLOTS = 8
"""Least default: training on a GPU holds three slots, two are never given away, processes write into the others."""
MAX_SLOTS = 32
"""At most this many by default."""
AUTO_MEMORY_SHARE, ASKED_MEMORY_SHARE = 1 / 8, 1 / 2
"""The part of a rank's memory that slots may take: by default, and if the user asks for a number of slots."""

_log = logging.getLogger(__name__)


def slot_count(asked: int, needed: int, slot_bytes: int, memory_bytes: int) -> int:
    """Slots of a loader.

    Args:
        asked: ``data.loader.slots``; 0: choose a number.
        needed: the number with which all loader processes have work.
        slot_bytes: size of a batch's pixels and indices.
        memory_bytes: memory of this rank.

    If the requested number exceeds half of the memory, it is lowered, with a warning.
    """
    part = ASKED_MEMORY_SHARE if asked else AUTO_MEMORY_SHARE
    room = max(int(memory_bytes * part) // slot_bytes, MIN_SLOTS)
    if asked > room:
        _log.warning(
            "data.loader.slots=%d would take %.1f GB of the %.1f GB that this worker has; it gets %d slots of %.0f MB. "
            "Write data.loader.slots=%d, or give the job more memory.",
            asked, asked * slot_bytes / 1e9, memory_bytes / 1e9, room, slot_bytes / 1e6, room,
        )  # fmt: skip
    return min(max(asked, MIN_SLOTS) if asked else min(max(needed, USUAL_SLOTS), MAX_SLOTS), room)


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
