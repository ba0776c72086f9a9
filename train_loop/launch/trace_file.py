"""``trace.jsonl``: a JSON line for each epoch of a full run, with when, where and what it cost."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bigbatch.train_loop.reporter import EpochRecord

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
