"""Lines of JSON that workers write for their driver, because Ray's reports do not reach the driver of a full run.

Rank 0 of a full run writes its epochs. Files are only appended to; after a resume the same epoch may come again, and
the last line counts. A line that a kill has cut off is left out.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.train_loop.progress import ProgressLines, read_progress
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter, Tracker

RESUMED = "resumed_after"
"""Key of the line in ``records_file`` with the number of epochs in the checkpoint."""
NOTES = "notes"
"""Key of a line, and metric of Ray's reports, with the nodes' warnings for the user."""


class RecordPrinter:
    """Prints new records of the workers, each epoch once, and the position within long epochs."""

    def __init__(self, path: Path, progress: Path, tracker: Tracker | None = None) -> None:
        self._path, self._progress = path, progress
        self._printed, self._told = 0, 0
        self._reporter = PrintReporter(tracker=tracker)
        self._lines = ProgressLines()
        with contextlib.suppress(OSError):
            progress.write_text("")  # workers write only to an existing file

    def close(self) -> None:
        """Remove the progress file."""
        self._progress.unlink(missing_ok=True)

    def print_new(self) -> None:
        """Print the notes and records that came since the last call."""
        lines = read_lines(self._path)
        notes = list(dict.fromkeys(text for line in lines for text in json_values.texts(line, NOTES)))
        for text in notes[self._told :]:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        self._told = len(notes)
        resumed_after = max((json_values.whole_number(line, RESUMED) for line in lines), default=0)
        records = records_of(lines)
        if resumed_after > self._printed:
            self._reporter.resumed(list(records.values())[:resumed_after])
            self._printed = resumed_after
        for epoch, record in records.items():
            if epoch > self._printed:
                self._reporter.report(record)
                self._printed = epoch
                self._lines.something_was_said()
        if line := self._lines.line(read_progress(self._progress)):
            print(line, flush=True)


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Add a line to a records file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, object]]:
    """The complete lines of a records file, oldest first; empty if there is no file."""
    text = path.read_text() if path.exists() else ""
    return [
        json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")
    ]  # else it is being written


def records_of(lines: list[dict[str, object]]) -> dict[int, EpochRecord]:
    """Epoch → record, in rising order. For an epoch that was trained twice, the later record."""
    records = [EpochRecord.from_dict(line) for line in lines if "epoch" in line]
    return {record.epoch: record for record in sorted(records, key=lambda record: record.epoch)}
