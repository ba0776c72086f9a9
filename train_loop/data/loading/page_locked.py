"""Page-locked memory for the loader's slots: copies from it to a GPU run beside what is computed."""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

_log = logging.getLogger(__name__)


def page_lock(memory: npt.NDArray[np.uint8]) -> None:
    """Tell CUDA of the memory, until the array is gone. All that uses the memory must be a view of this array.

    Where CUDA refuses, batches are copied once more; a line says so.
    """
    if not torch.cuda.is_initialized():  # to ask whether CUDA is available would keep it from all forked children
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    refused = cudart.cudaHostRegister(address, len(memory), 0)
    if int(refused) == 0:
        weakref.finalize(memory, cudart.cudaHostUnregister, address).atexit = False
        return
    _take_last_error()
    _say_once(cudart.cudaGetErrorString(refused))


def _take_last_error() -> None:
    """CUDA keeps the error until somebody asks for it: torch would, at the next kernel, and raise it there.

    torch has the function nowhere in Python. Its libraries are loaded with their names visible, CUDA's runtime too.
    """
    ask: Callable[[], int] | None = getattr(ctypes.CDLL(None), "cudaGetLastError", None)
    if ask is not None:  # not where the runtime is linked into torch
        ask()


@functools.cache
def _say_once(reason: str) -> None:
    _log.warning(
        "CUDA did not page-lock the loader's slots (%s): each batch is copied once more on its way to the GPU. "
        "--set data.loader.slots=4 needs less memory; --set data.loader.pin_memory=false does not try.",
        reason,
    )
