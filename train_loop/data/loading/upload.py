"""Batches to the device, on a stream of their own, so that copying overlaps with computing."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.config import LoaderConfig
from bigbatch.train_loop.data.source import Batch
from bigbatch.train_loop.plugins.nested import Nested, map_tensors, tensors_of

COPIES_AHEAD = 2

_log = logging.getLogger(__name__)


class Uploader:
    """Copies batches to ``device``; on a CPU it hands them through.

    A loader writes into a batch's memory again once nobody holds the batch. So each copy that runs by itself has an
    event behind it, and its batch is held here until the event has come; a copy without one has ended when the call
    returns.

    - With ``pin_memory`` the copy runs on a stream of its own, beside the steps that are still being computed: the host
      is ahead of the device, so asking for a batch when the host needs it is early enough, and no batch is asked for
      before the loader has it.
    - Without it the copy takes its turn on the current stream; the host goes on when the driver lets it.
    """

    def __init__(self, device: torch.device, config: LoaderConfig) -> None:
        self._device, self._pin = device, config.pin_memory
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and config.pin_memory else None
        self._copied_from: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def __call__(self, batch: Batch) -> Batch:
        """The same inputs and targets on the device, to be used on the current stream."""
        if self._device.type != "cuda":
            return self._copy(batch)
        if self._pin:
            batch = map_tensors(_pinned, batch[0]), map_tensors(_pinned, batch[1])
        while len(self._copied_from) >= COPIES_AHEAD:
            self._copied_from[0][0].synchronize()
            self._copied_from.popleft()  # not before: the batch is let go with it
        current = torch.cuda.current_stream(self._device)
        lane = current if self._stream is None else self._stream
        with torch.cuda.stream(lane):
            there = self._copy(batch)
            copied = lane.record_event()
        self._copied_from.append((copied, batch))
        if self._stream is not None:
            # The copy runs on another stream: without this the step might read a batch that is not there yet.
            current.wait_event(copied)
            for tensor in tensors_of(there):
                tensor.record_stream(current)  # its memory belongs to the other stream
        return there

    def _copy(self, batch: Batch) -> Batch:
        return self._there(batch[0]), self._there(batch[1])

    def _there(self, part: Nested) -> Nested:
        return map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), part)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    on_device = tensor.device.type != "cpu"  # a data set of the user's own may keep its items there
    return tensor if on_device or tensor.is_pinned() else tensor.pin_memory()


def page_lock(memory: npt.NDArray[np.uint8]) -> None:
    """Tell CUDA of the memory, until the array is gone: copies to a GPU then run beside what is computed. All that uses
    the memory must be a view of this array.

    Where CUDA refuses, batches are copied once more; a line says so.
    """
    if not torch.cuda.is_initialized():  # to ask whether CUDA is available would keep it from all forked children
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    refused = cudart.cudaHostRegister(address, len(memory), 0)
    if int(refused) == 0:
        weakref.finalize(memory, cudart.cudaHostUnregister, address).atexit = False
        return
    # CUDA keeps the error until somebody asks for it: torch would at the next kernel, and raise it there. torch has the
    # function nowhere in Python; its libraries are loaded with their names visible.
    getattr(ctypes.CDLL(None), "cudaGetLastError", int)()
    _log.warning(
        "CUDA did not page-lock the loader's slots (%s): each batch is copied once more on its way to the GPU. "
        "--set data.loader.pin_memory=false does not try.",
        cudart.cudaGetErrorString(refused),
    )
