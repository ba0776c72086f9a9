"""Listeners to a full run: a reporter that lets a signal save and end a run without Ray, and ``trace.jsonl``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bigbatch.base.waits import SAME_SIGNAL_S
from bigbatch.train_loop.host.signals import SAVING, StopSignals, say_from_handler
from bigbatch.train_loop.progress import StepsFile
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter, Tracker


class StopOnSignal(PrintReporter):
    """Ctrl-C stops the run after the current step, with a checkpoint; a later second one at once.

    Args:
        rank: rank of this process; only rank 0 prints.
        signals: the signals that stop the run. If a rank fails, torchrun ends the others with SIGTERM; under torchrun
            SIGTERM is therefore no stop request.
        also: gets each record on rank 0.
        log_every_steps, steps, tracker: see ``PrintReporter``.
    """

    def __init__(
        self,
        rank: int,
        signals: Sequence[int] = (signal.SIGINT,),
        also: Callable[[EpochRecord], None] | None = None,
        log_every_steps: str = "",
        steps: StepsFile | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        super().__init__(rank, also=also, log_every_steps=log_every_steps, steps=steps, tracker=tracker)
        self._rank = rank
        self._signals = StopSignals(self._asked, signals, also_ignored=True, same_signal_s=SAME_SIGNAL_S)
        self._signals.take()

    @property
    def signum(self) -> int | None:
        """The signal that stops the run; None if none has come."""
        return self._signals.first

    def stop_requested(self) -> bool:
        """Whether a signal has come."""
        return self._signals.first is not None

    def _asked(self, signum: int) -> None:
        if self._rank == 0:
            say_from_handler(SAVING)


TRACE_FILE = "trace.jsonl"


def trace_writer(output: Path, workers: int) -> Callable[[EpochRecord], None]:
    """A function that appends a record's line to the file in ``output``.

    An epoch that is trained again, because a kill lost its checkpoint, gets another line. A full disk loses lines: the
    records are also in the checkpoint.
    """

    def write(record: EpochRecord) -> None:
        values = record.to_dict()
        epoch_s = sum(values[name] or 0.0 for name, column in EpochRecord.columns().items() if column.epoch_part)
        line = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "workers": workers,
            "device_hours": round(workers * epoch_s / 3600, 6),
            **values,
        }
        with contextlib.suppress(OSError), (output / TRACE_FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")

    return write
