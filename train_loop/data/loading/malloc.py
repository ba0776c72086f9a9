"""Memory that decoding frees is kept for the next image. No torch.

glibc's allocator returns large blocks to the system as soon as they are free, and requests them again for the next
image: its pages must be mapped and filled with zeros each time, one fault for each 4 kB.
Source of the parameters: mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache

KEPT_FREE_BYTES = 32 << 20
"""Keep at most this much free memory at the end of the heap: an RGB image of 10 million pixels."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def raise_malloc_thresholds(env: Mapping[str, str] = os.environ) -> bool:
    """Tell this process's allocator to keep up to ``KEPT_FREE_BYTES``.

    Returns:
        False if the system's library is not glibc, or the user has set its parameters. Then nothing changes.
    """
    return not any(name in env for name in _USER_SETTINGS) and _set_parameters()


@cache
def _set_parameters() -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl, macOS
        return False
    # glibc raises the two thresholds by itself as blocks are freed, but stops at what was freed so far; to set one of
    # them stops that for both, so both are set. Of the threshold for mapping, 32 MB is the most that glibc takes.
    values = {_MMAP_THRESHOLD: KEPT_FREE_BYTES, _TRIM_THRESHOLD: KEPT_FREE_BYTES, _TOP_PAD: KEPT_FREE_BYTES // 8}
    accepted = [
        mallopt(parameter, value) == 1 for parameter, value in values.items()
    ]  # sets each, also after a refusal
    return all(accepted)
