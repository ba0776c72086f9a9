"""Time the phases of single training steps, for a profile: data, transfer, forward, backward, optimizer.

On a GPU the times are the device's: an event stands at each end of a phase in the stream that computes. So a phase also
holds the time in which that stream had nothing to do. "data" is then how long the device waited for images, not how
long the host did, and "transfer" is how long it waited for a copy. Nothing waits for the device before the last step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function

from bigbatch.train_loop.loop.chronometer import Chronometer

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
"""In the order in which a step passes through them. With several micro-batches all but the last come again."""
STEP, OTHER = "step", "other"


class DeviceClock:
    """Points in time on a device: CUDA events in its current stream; on CPUs the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event | float:
        """The point that the device reaches after all that it was given so far. Waits for nothing."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> float:
        """Wait until the device has done all that it was given. Returns the host's time in seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @staticmethod
    def between(begin: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
        """Seconds between two points. On a GPU call ``wait`` first."""
        if isinstance(begin, float) or isinstance(end, float):
            assert isinstance(begin, float) and isinstance(end, float)
            return end - begin
        return begin.elapsed_time(end) / 1000


class StepTimer(Chronometer):
    """A chronometer that also times each phase, within ``step``. Phases follow each other; none is inside another.

    Each phase is a named range in the traces of ``torch.profiler``.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.clock = DeviceClock(device)
        self._laps: list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]] = []
        self._steps: list[list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase of the step."""
        with self._range(name), record_function(name):
            begin = self.clock.now()
            try:
                yield
            finally:
                self._laps.append((name, begin, self.clock.now()))

    @contextmanager
    def part(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """As ``Chronometer.part``; the wait for images is a phase as well."""
        waiting: AbstractContextManager[None] = self.phase("data") if name == "data_s" else nullcontext()
        with waiting, super().part(name, synchronize=synchronize):
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        """A whole step, from the wait for its first image to the end of its optimizer step."""
        self._laps = []
        with self.phase(STEP):
            yield
        self._steps.append(self._laps)

    def take(self) -> list[dict[str, float]]:
        """Seconds by phase of each step since the last call, with ``step``, and ``other``: what no phase had.

        Waits for the device.
        """
        self.clock.wait()
        times = [self._times(laps) for laps in self._steps]
        self._steps = []
        return times

    def _times(self, laps: list[tuple[str, torch.cuda.Event | float, torch.cuda.Event | float]]) -> dict[str, float]:
        times = dict.fromkeys((*PHASES, STEP), 0.0)
        for name, begin, end in laps:
            times[name] += self.clock.between(begin, end)
        times[OTHER] = times[STEP] - sum(times[name] for name in PHASES)
        return times
