"""Memory that decoding frees is kept for the next image. No torch.

glibc's allocator returns large blocks to the system as soon as they are free, and requests them again for the next
image: its pages must be mapped and filled with zeros each time, one fault for each 4 kB.
Source of the parameters: mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

KEPT_FREE_BYTES = 32 << 20
"""Keep at most this much free memory at the end of the heap: an RGB image of 10 million pixels."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def raise_malloc_thresholds() -> None:
    """Tell this process's allocator to keep up to ``KEPT_FREE_BYTES``, unless it is not glibc's or the user has set its
    parameters."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # none in musl and macOS
    if mallopt is None or any(name in os.environ for name in _USER_SETTINGS):
        return
    # glibc raises the two thresholds by itself as blocks are freed, but stops at what was freed so far; to set one of
    # them stops that for both, so both are set. Of the threshold for mapping, 32 MB is the most that glibc takes.
    for parameter, value in ((_MMAP_THRESHOLD, 1), (_TRIM_THRESHOLD, 1), (_TOP_PAD, 8)):
        mallopt(parameter, KEPT_FREE_BYTES // value)
