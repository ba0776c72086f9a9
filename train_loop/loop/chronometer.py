"""Measure the wall time of each part of an epoch, in seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

PARTS = ("data_s", "step_s", "bn_s", "val_s", "checkpoint_s")

T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Chronometer:
    """Adds up seconds by part.

    On an accelerator the host runs ahead of the device. The host times the steps; ``step_s`` also includes the wait for
    the device when the loop reads its sums (about once a second and at the end of an epoch). Within an epoch the clock
    itself causes no synchronisation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._within = 0.0

    @contextmanager
    def part(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """Time a block, without the parts inside it. ``synchronize``: wait for the device at its end."""
        start, outer = time.perf_counter(), self._within
        self._within = 0.0
        try:
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
        """A block of a step that only a profile times (``step_timer.StepTimer``). Here it does nothing."""
        return _NOTHING

    def reset(self) -> None:
        """Set all parts back to 0 s."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
