"""The largest amount of memory that this process has needed for training."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

PROCESS_STATUS = Path("/proc/self/status")


def forget_peak(device: torch.device) -> None:
    """Begin again to look for the peak of a CUDA device. A process's own peak cannot be forgotten."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Bytes that this rank needed at most.

    On CUDA: what torch's allocator held in tensors on ``device`` (``torch.cuda.max_memory_allocated``) since
    ``forget_peak``. Elsewhere: the largest resident set of this process since it began, without its children.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_peak_bytes()


def resident_peak_bytes() -> int:
    """The largest resident set of this process in bytes.

    Linux tells it of this program alone (VmHWM in proc(5)). ``getrusage`` also counts what the process was before it
    became this program, so a child of a large process would begin with its parent's size.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in PROCESS_STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
