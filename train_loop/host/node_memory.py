"""A node whose memory is full: recognize it in an error, or by the processes that the kernel ended. No torch here."""

from __future__ import annotations

import errno
from pathlib import Path

NODE_MEMORY_FIX = "Use fewer loader processes (--set data.loader.workers=1), or ask for more memory (Slurm: --mem)"
"""What helps when the memory of a node is full. A smaller micro-batch does not help: it saves the device's memory."""
_WORDS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""How torch says that the host's memory is full."""
_OWN_CGROUP = Path("/proc/self/cgroup")


def is_node_memory_full(error: BaseException) -> bool:
    """Whether the error says that the host has no memory left."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def count_memory_kills(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = _OWN_CGROUP) -> int:
    """How many processes of this job, or of this control group outside a job, the kernel has ended on this node because
    their memory was full. 0 if the kernel does not report it.

    From ``memory.events`` (version 2 of control groups) or ``memory.oom_control`` (version 1). A group's number counts
    the groups in it; Slurm sets limits for the job, its steps and its tasks.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return 0
    counts = [0]
    for parts in lines:
        # Version 2 has one line, without controllers; version 1 a line for each, of which memory's counts.
        if len(parts) != 3 or (parts[1] and "memory" not in parts[1].split(",")):
            continue
        root, file = (cgroups / "memory", "memory.oom_control") if parts[1] else (cgroups, "memory.events")
        group = Path(parts[2].lstrip("/"))
        groups = [group, *(above for above in group.parents if above.name.startswith(("job_", "step_")))]
        counts += [_kills_in(root / each / file) for each in groups]
    return max(counts)


def _kills_in(path: Path) -> int:
    try:
        values = dict(line.split() for line in path.read_text().splitlines())
        return int(values.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
