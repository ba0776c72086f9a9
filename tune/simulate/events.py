"""Simulated time: slots that train rows of a table, one epoch after the other, without order among the slots."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bigbatch.tune.simulate.curves import CurveTable, RecordedCurve


class SimulatedClock:
    """Seconds since the replay's begin. Hand it to whatever asks for the time, as ``time.monotonic``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class StartedTrial:
    """A trial that a free slot begins or continues."""

    number: int
    row: int
    epoch: int = 0
    """Epochs that it has behind it: those of the paused trial that it continues."""


class ReplayDriver(Protocol):
    """What decides in a replay: what a slot begins, and what happens after an epoch."""

    def start(self) -> StartedTrial | None:
        """What a free slot does next; None: nothing now."""

    def observe(self, number: int, epoch: int, value: float | None) -> bool:
        """Take in a trial's epoch (1-based). ``value`` None: it diverged in it. Returns whether the trial has ended."""


@dataclass(frozen=True)
class EpochEnd:
    """An epoch of a trial that ended in the replay."""

    at_s: float
    trial: int
    row: int
    epoch: int
    value: float | None
    """None: the run diverged in this epoch."""


def run_slots(
    driver: ReplayDriver, table: CurveTable, slots: int, clock: SimulatedClock, until_s: float, resume_s: float
) -> Iterator[EpochEnd]:
    """Replay until ``until_s`` or until the driver starts nothing more. Yields each epoch before the driver sees it.

    Args:
        resume_s: what a continued trial waits before its next epoch: its processes start, its checkpoint is read.
    """
    waiting: list[tuple[float, int, StartedTrial]] = []
    count = 0

    def push(trial: StartedTrial, at_s: float) -> None:
        nonlocal count
        count += 1
        # The count decides between equal times; trials themselves have no order.
        heapq.heappush(waiting, (at_s, count, trial))

    while True:
        while len(waiting) < slots and (begun := driver.start()) is not None:
            extra_s = resume_s if begun.epoch else 0.0
            push(begun, clock.now_s + extra_s + epoch_seconds(table, begun.row, begun.epoch + 1))
        if not waiting:
            return
        at_s, _, trial = heapq.heappop(waiting)
        if at_s > until_s:
            return
        clock.now_s = at_s
        curve, epoch = table.curves[trial.row], trial.epoch + 1
        value = curve.values[epoch - 1] if epoch <= len(curve.values) else None
        yield EpochEnd(at_s, trial.number, trial.row, epoch, value)
        if not driver.observe(trial.number, epoch, value):
            onward = StartedTrial(trial.number, trial.row, epoch)
            push(onward, at_s + epoch_seconds(table, trial.row, epoch + 1))


def epoch_seconds(table: CurveTable, row: int, epoch: int) -> float:
    """How long that epoch (1-based) of the row took. One that ended in divergence at an unknown time: a mean one."""
    curve: RecordedCurve = table.curves[row]
    if epoch > len(curve.seconds):
        return table.epoch_s
    return curve.seconds[epoch - 1] - (curve.seconds[epoch - 2] if epoch > 1 else 0.0)
