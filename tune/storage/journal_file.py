"""The journal of a study on a disk that may be full: the search saves everything and ends with one line.

The journal must not be lost. A failed append is undone, so that no half line stays in the file. See
docs/decisions/015.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from bigbatch.cluster.host.optuna_journal import end_of_whole_trials
from bigbatch.train_loop.host.disk_space import DiskFull, describe_full_disk, full_errno
from bigbatch.tune.storage.description import unreadable_journal


class Disk:
    """The file system of a study's folder, as the driver's writes find it.

    Attributes:
        full: why the search ends; None while there is room.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.full: str | None = None

    def end_because(self, error: BaseException) -> bool:
        """Whether ``error`` comes from a full disk. If so, ``full`` names the disk."""
        number = full_errno(error, self.folder)
        if number is not None and self.full is None:
            file = getattr(error, "filename", None)
            self.full = describe_full_disk(number, Path(file).parent if isinstance(file, str) else self.folder)
        return self.full is not None

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Within the block, at the end of a search, skip writes for which there is no room: they can be repeated."""
        try:
            yield
        except Exception as error:
            if not self.end_because(error):
                raise


class JournalFile(JournalFileBackend):
    """Optuna's journal file, on a disk that may be full or read-only."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(str(path))
        self._path, self._disk = path, disk

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        """Append the lines. Raises DiskFull if there is no room; the journal is then unchanged."""
        size = os.path.getsize(self._path)
        try:
            super().append_logs(logs)
        except OSError as error:
            # If more followed a partly written line, the journal could not be read.
            with contextlib.suppress(OSError):
                os.truncate(self._path, size)
            if self._disk.end_because(error):
                raise DiskFull(self._disk.full or "") from None
            raise


class LineLog:
    """A text file to which lines are appended one by one. A line for which there is no room is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = ""

    def write(self, text: str) -> int:
        """Take in ``text``; append to the file when a line is complete. Returns the number of characters."""
        self._line += text
        if "\n" in text:
            line, self._line = self._line, ""
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                if full_errno(error, self._path.parent) is None:
                    raise
        return len(text)

    def flush(self) -> None:
        """Do nothing: each complete line is already written."""


def repair_journal(path: Path) -> None:
    """Remove the remains of a killed writer: its lock, an incomplete last line, the parameters of a half-drawn trial.

    Optuna cannot read a journal in which something follows an incomplete line. A trial that is drawn on would differ
    from one that is drawn at once. No other writer exists, because this process holds the study's lease.
    """
    # Optuna would first wait for the lock of a process that is dead.
    for lock in path.parent.glob(f"{path.name}.lock*"):
        lock.unlink(missing_ok=True)
    if not path.exists():
        return
    data = path.read_bytes()
    keep = end_of_whole_trials(data)
    if keep < len(data):
        with path.open("r+b") as journal:
            journal.truncate(keep)
            journal.flush()
            os.fsync(journal.fileno())


def open_journal(path: Path, disk: Disk) -> JournalStorage:
    """The journal at ``path``, new or not. Raises ConfigError if a line of it cannot be read: nothing may follow it."""
    try:
        return JournalStorage(JournalFile(path, disk))
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_journal(path.parent, f"it is damaged: {' '.join(str(error).split())[:120]}") from None
