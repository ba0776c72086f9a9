"""Measure the wall time of each part of an epoch, in seconds; for a profile also that of the phases of single steps.

Phases are data, transfer, forward, backward, optimizer. On a GPU their times are the device's: an event stands at each
end of a phase in the stream that computes. So a phase also holds the time in which that stream had nothing to do.
"data" is then how long the device waited for images, not how long the host did, and "transfer" is how long it waited
for a copy. Nothing waits for the device before the last step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch.profiler import record_function

T = TypeVar("T")
PARTS = ("data_s", "step_s", "bn_s", "val_s", "checkpoint_s")

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
            if synchronize:
                self.wait()
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
        """A block of a step that only a profile times (``StepTimer``)."""
        return _NOTHING

    def wait(self) -> float:
        """Wait until the device has done all that it was given. Returns the host's time in seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def reset(self) -> None:
        """Set all parts back to 0 s."""
        self.seconds = dict.fromkeys(PARTS, 0.0)


PHASES = ("data", "transfer", "forward", "backward", "optimizer")
"""In the order of a step. With several micro-batches, all but the last phase repeat."""
STEP, OTHER = "step", "other"


class StepTimer(Chronometer):
    """A chronometer that also times each phase, within ``step``. Phases follow each other; none is inside another.

    Each phase is a named range in the traces of ``torch.profiler``.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._laps: list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]] = []
        self._steps: list[list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase of the step."""
        with record_function(name):
            laps, begin = self._laps, self._now()
            yield
            laps.append((name, begin, self._now()))

    @contextmanager
    def part(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """As ``Chronometer.part``; the wait for a step's images is a phase as well."""
        waiting: AbstractContextManager[None] = self.phase("data") if name == "data_s" else nullcontext()
        with waiting, super().part(name, synchronize=synchronize):
            yield

    def step(self) -> AbstractContextManager[None]:
        """A whole step, from the wait for its first image to the end of its optimizer step."""
        self._laps = []
        self._steps.append(self._laps)
        return self.phase(STEP)

    def take(self) -> list[dict[str, float]]:
        """For each step since the last call its seconds: of each phase, of the whole ``step``, and of ``other``, the
        time outside all phases. Waits for the device.
        """
        self.wait()
        steps, self._steps = self._steps, []
        return [_seconds(laps) for laps in steps]

    def _now(self) -> torch.cuda.Event | float:
        """A mark that the device reaches after all work that it was given so far. Does not wait."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(laps: list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]]) -> dict[str, float]:
    times = dict.fromkeys((*PHASES, STEP), 0.0)
    for name, begin, end in laps:
        if isinstance(begin, float) or isinstance(end, float):
            assert isinstance(begin, float) and isinstance(end, float)
            times[name] += end - begin
        else:
            times[name] += begin.elapsed_time(end) / 1000
    times[OTHER] = times[STEP] - sum(times[name] for name in PHASES)
    return times
