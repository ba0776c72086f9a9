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
    """Copies batches to ``device``; on a CPU it returns them unchanged.

    A loader reuses a batch's memory when nothing refers to the batch. So an event follows each asynchronous copy, and
    the batch is held here until the event has happened; a copy without an event has ended when the call returns.

    - With ``pin_memory`` the copy runs on its own stream, beside the steps that the device still computes. The host is
      ahead of the device, so it is early enough to ask for a batch when the host needs it, and the loader has it then.
    - Without it the copy takes its turn on the current stream, and the host continues when the driver allows it.
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
            self._copied_from.popleft()  # only now, because this releases the batch
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
    """Register the memory with CUDA until the array is freed: copies to a GPU then run beside computations. Everything
    that uses the memory must be a view of this array.

    If CUDA refuses, batches are copied once more, and a line says so.
    """
    if not torch.cuda.is_initialized():  # asking whether CUDA is available would make it unusable in all forks
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    refused = cudart.cudaHostRegister(address, len(memory), 0)
    if int(refused) == 0:
        weakref.finalize(memory, cudart.cudaHostUnregister, address).atexit = False
        return
    # CUDA keeps the error until it is asked for: torch would do so at the next kernel, and raise it there. torch has no
    # Python function for this, but its libraries are loaded with visible names.
    getattr(ctypes.CDLL(None), "cudaGetLastError", int)()
    _log.warning(
        "CUDA did not page-lock the loader's slots (%s): each batch is copied once more on its way to the GPU. "
        "With --set data.loader.pin_memory=false it is not tried.",
        cudart.cudaGetErrorString(refused),
    )
