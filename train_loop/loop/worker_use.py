"""What a rank uses: its GPU, and the largest amount of memory."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import torch

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.host.device_use import UseMeter, open_gpu_counters
from bigbatch.train_loop.host.ranks import trials_on_gpu


def open_use_meter(world: World) -> UseMeter:
    """The meter of this rank, not yet entered."""
    cuda = world.device.type == "cuda"
    gpu = open_gpu_counters(str(torch.cuda.get_device_properties(world.device).uuid)) if cuda else None
    return UseMeter(gpu, gpu_part=1 / trials_on_gpu())


PROCESS_STATUS = Path("/proc/self/status")
PROCESS_PEAK = Path("/proc/self/clear_refs")
FORGET_RESIDENT_PEAK = "5"
"""Written to ``/proc/self/clear_refs``, it resets the peak: proc(5)."""


def forget_peak(device: torch.device) -> None:
    """Reset the memory peak of a CUDA device, or of this process, which may have trained another trial before.

    If the system cannot reset a process's peak, the peak since the process began stays.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            PROCESS_PEAK.write_text(FORGET_RESIDENT_PEAK)


def give_back_memory() -> None:
    """Return freed memory that the C library keeps to the system, if the library can."""
    with contextlib.suppress(OSError, AttributeError):  # other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """The resident set of this process in bytes; 0 if the system does not report it."""
    return _of_status("VmRSS:")


def peak_bytes(device: torch.device) -> int:
    """The peak memory of this rank, in bytes.

    On CUDA: what torch's allocator held in tensors on ``device`` (``torch.cuda.max_memory_allocated``) since
    ``forget_peak``. Elsewhere: the largest resident set of this process since then, without its children; 0 if the
    system does not report it. ``getrusage`` would also count the time before ``exec``, with the parent's size.
    """
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _of_status("VmHWM:")


def _of_status(name: str) -> int:
    """Bytes that ``/proc/self/status`` gives for ``name``; 0 if it does not."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in PROCESS_STATUS.read_text().splitlines():
            if line.startswith(name):
                # proc(5) gives kB, which are KiB.
                return 1024 * int(line.split()[1])
    return 0
