"""Report progress within long epochs in a small file beside the run's log. No torch here.

Ray Train's own report is a barrier over all ranks and waits for a poll of the controller. This report costs rank 0 only
a few hundred bytes every ``WRITE_EVERY_S``, after a step at which the loop has already waited for the device.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bigbatch.base import json_values

WRITE_EVERY_S = 5.0
"""Least time between two writes of the file."""
LINE_EVERY_S = 60.0
"""Epochs shorter than this get no line within them."""


@dataclass(frozen=True)
class StepProgress:
    """The position of a run. ``step`` 0 with ``epoch`` 0: its worker has begun, and prepares data and model."""

    epoch: int = 0
    """1-based; 0 before the first step of this process."""
    step: int = 0
    """Optimizer steps of the epoch that are finished."""
    steps: int = 0
    """Optimizer steps of the whole epoch."""
    images_per_s: float = 0.0
    """Rate of all workers since the previous entry; 0 if there was none."""

    @property
    def fraction(self) -> float:
        """The finished part of the epoch, 0 to 1."""
        return self.step / self.steps if self.steps else 0.0

    def __str__(self) -> str:
        rate = f", {self.images_per_s:,.0f} images/s" if self.images_per_s else ""
        return f"epoch {self.epoch}: step {self.step} of {self.steps}{rate}"


class ProgressPace:
    """Turns finished steps into ``StepProgress``, at most one every ``every_s``."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._next = -float("inf")
        self._before: tuple[float, int, int] | None = None

    def after(self, epoch: int, step: int, steps: int, images_per_step: int) -> StepProgress | None:
        """The entry after a step; None if it is too early for another one. Call it after steps, e.g. every second."""
        now, rate = self._clock(), 0.0
        if self._before is None or self._before[1] != epoch:  # validation lies between: no rate over it
            self._before = (now, epoch, step)
        if now < self._next:
            return None
        at, _, first = self._before
        if now > at:
            rate = (step - first) * images_per_step / (now - at)
            self._before = (now, epoch, step)
        self._next = now + self._every_s
        return StepProgress(epoch, step, steps, rate)


class ProgressFile:
    """The progress file, written by rank 0. It writes only to an existing file: the reader makes and removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pace = ProgressPace(WRITE_EVERY_S)

    def begin(self) -> None:
        """Note that the worker runs."""
        self._write(StepProgress())

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """Write the progress within the epoch, if a new entry is due."""
        if entry := self._pace.after(epoch, step, steps, images_per_step):
            self._write(entry)

    def _write(self, entry: StepProgress) -> None:
        # Overwrite in place: NFS caches names, so a replaced file may stay unseen for some time.
        with suppress(OSError):  # the disk is full; the loop's own files will report it
            descriptor = os.open(self._path, os.O_WRONLY | os.O_TRUNC)
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(asdict(entry)) + "\n")


def progress_file(log_file: str | Path) -> Path:
    """The progress file beside the log of a trial or a run."""
    return Path(log_file).with_suffix(".progress")


def read_progress(path: Path) -> StepProgress | None:
    """The last entry; None if there is none yet, or it is incomplete."""
    try:
        text = path.read_text()
        values = json_values.json_object(text) if text.endswith("\n") else {}
    except (OSError, ValueError):
        return None
    if not values or not values.keys() <= {field.name for field in fields(StepProgress)}:
        return None
    return json_values.read_fields(StepProgress, values)


class ProgressLines:
    """Picks the entries that get a line: one every ``LINE_EVERY_S`` without another line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = clock()
        self._last: StepProgress | None = None

    def something_was_said(self) -> None:
        """Wait before the next line: the terminal has just shown another one."""
        self._said_at = self._clock()

    def line(self, entry: StepProgress | None) -> str | None:
        """The line for ``entry``; None if none is due."""
        if entry is None or not entry.epoch or entry == self._last or self._clock() - self._said_at < LINE_EVERY_S:
            return None
        self._said_at, self._last = self._clock(), entry
        return str(entry)
