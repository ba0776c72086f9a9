"""Measure the wall time of each part of an epoch, in seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

PARTS = ("data_s", "step_s", "bn_s", "val_s", "checkpoint_s")

T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()
NSIGHT = ("NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE")
"""Variables that Nsight Systems and Nsight Compute set for the processes that they record."""


def named_ranges() -> Callable[[str], AbstractContextManager[None]]:
    """Marks a block for Nsight by its name (NVTX), if Nsight records this process; else it does nothing."""
    # torch without CUDA has no NVTX.
    if any(os.environ.get(name) for name in NSIGHT) and hasattr(torch._C, "_nvtx"):
        return lambda name: torch.cuda.nvtx.range(name.removesuffix("_s"))
    return lambda _: _NOTHING


class Chronometer:
    """Adds up seconds by part.

    On an accelerator the host runs ahead of the device. The host times the steps; ``step_s`` also includes the wait for
    the device when the loop reads its sums (about once a second and at the end of an epoch). Within an epoch the clock
    itself causes no synchronisation.

    Each part and each phase is a range in what Nsight records.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._within = 0.0
        self._range = named_ranges()

    @contextmanager
    def part(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """Time a block, without the parts inside it. ``synchronize``: wait for the device at its end."""
        start, outer = time.perf_counter(), self._within
        self._within = 0.0
        try:
            with self._range(name):
                yield
            if synchronize and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        finally:
            taken = time.perf_counter() - start
            self.seconds[name] += taken - self._within
            self._within = outer + taken

    def waiting(self, items: Iterable[T], name: str) -> Iterator[T]:
        """Yield ``items``, and time how long each takes to come."""
        iterator = iter(items)
        while True:
            with self.part(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
            del item  # it may hold memory that the next one needs

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A block of a step that only a profile times (``step_timer.StepTimer``)."""
        return self._range(name)

    def reset(self) -> None:
        """Set all parts back to 0 s."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
