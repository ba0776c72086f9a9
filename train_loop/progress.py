"""Report progress within long epochs, and logged steps, in small files beside the run's log. No torch here.

Ray Train's own report is a barrier over all ranks and waits for a poll of the controller. This report costs rank 0 only
a few hundred bytes every ``WRITE_EVERY_S``, after a step at which the loop has already waited for the device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.command_line import parse_fraction
from bigbatch.train_loop.config.rules import ConfigError

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
    return StepProgress(
        epoch=json_values.whole_number(values, "epoch"),
        step=json_values.whole_number(values, "step"),
        steps=json_values.whole_number(values, "steps"),
        images_per_s=json_values.number(values, "images_per_s"),
    )


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


# Steps that are logged: rank 0 appends a line for each. A run that goes on from a checkpoint trains some steps again;
# the file already has those, so each step is there, in the log and in W&B once.

LOG_EVERY_STEPS = "log train loss, accuracy and rates every N steps, or every 10%% of an epoch's"
"""The option's help."""
NEVER = "0"
"""The value of the option that ends the logging of a resumed study."""


@dataclass(frozen=True)
class StepInterval:
    """How often steps are logged. One of the two is 0."""

    steps: int = 0
    """After each of so many steps, counted from the run's first."""
    part: float = 0.0
    """After each such part of an epoch's steps: 0.1 gives ten in an epoch, the last one at its end."""

    def due(self, epoch: int, step: int, steps_per_epoch: int) -> bool:
        """Whether the ``step``-th step (1-based) of the epoch (0-based) is logged."""
        if self.steps:
            return (epoch * steps_per_epoch + step) % self.steps == 0
        size = self.part * steps_per_epoch
        # 0.1 is no exact float: without the small number a line might come a step late.
        return math.floor(step / size + 1e-9) > math.floor((step - 1) / size + 1e-9)


def read_interval(text: str | None) -> StepInterval | None:
    """The value of ``--log-every-steps``: ``50`` steps, or ``10%`` of an epoch. None for none. Raises ConfigError."""
    if text is None or text.strip() in ("", NEVER):
        return None
    if text.strip().isdecimal():
        return StepInterval(steps=int(text))
    try:
        part = parse_fraction(text)
    except argparse.ArgumentTypeError:
        part = math.nan
    if not 0.0 < part <= 1.0:
        raise ConfigError(
            f"--log-every-steps must be a number of steps or a part of an epoch's; got {text!r}. "
            "Write e.g. 50, or 10% for ten lines an epoch."
        )
    return StepInterval(part=part)


@dataclass(frozen=True)
class StepRecord:
    """The steps since the logged one before, over all ranks."""

    number: int
    """The last of them, among all steps of the run, 1-based; also those count that fp16 skips."""
    epoch: int
    """1-based."""
    step: int
    """Of the epoch, 1-based."""
    steps: int
    """Of the whole epoch."""
    train_loss: float | None
    """Their mean loss; None if it is not finite."""
    train_top1: float | None
    """0 to 1; None where targets are no classes."""
    learning_rate: float
    """Of the last of them."""
    images_per_s: float
    """All workers together; of the steps of this epoch in this process."""

    def __str__(self) -> str:
        loss = "" if self.train_loss is None else f"  train loss {self.train_loss:.4f}"
        top1 = "" if self.train_top1 is None else f" top-1 {self.train_top1:6.2%}"
        return (
            f"epoch {self.epoch}: step {self.step} of {self.steps}{loss}{top1}  lr {self.learning_rate:.4g}  "
            f"{self.images_per_s:,.0f} images/s"
        )


def steps_file(log_file: Path) -> Path:
    """The file beside the log of a trial or a run."""
    return log_file.with_suffix(".steps")


class StepsReader:
    """Reads the records of a file as they come. A line that is being written, or that a kill has cut off, is left."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> list[StepRecord]:
        """The records since the last call, oldest first; none if there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (_record(line) for line in whole.decode(errors="replace").splitlines())
        return [record for record in found if record is not None]


class StepsFile:
    """Appends records to a file, but for those of steps that it already has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = max((record.number for record in StepsReader(path).new()), default=0)

    def append(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        """Write what is new; returns that. Raises OSError."""
        fresh = [record for record in records if record.number > self._last]
        if fresh:
            self._last = fresh[-1].number
            lines = "".join(json.dumps(asdict(record)) + "\n" for record in fresh)
            with self._path.open("a+b") as file:
                end = file.seek(0, 2)
                if end and (file.seek(end - 1) >= 0) and file.read(1) != b"\n":  # a kill has cut off the last line
                    lines = "\n" + lines
                file.write(lines.encode())
        return fresh


def _record(line: str) -> StepRecord | None:
    try:
        return StepRecord(**json.loads(line))
    except (ValueError, TypeError):  # no JSON, or no record
        return None
