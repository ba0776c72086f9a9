"""Handle a full disk: the search waits for room if it can, else it saves everything and ends with one line.

The journal must not be lost. A failed append is undone, so that no half line stays in the file, and repeated when there
is room. See docs/decisions/015.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from bigbatch.cluster.host.optuna_journal import end_of_whole_trials
from bigbatch.train_loop.host.disk_space import NO_ROOM, DiskFull, describe_full_disk, full_errno
from bigbatch.tune.storage.description import unreadable_journal

JOB_VARIABLE = "BIGBATCH_JOB_FOLDER"
"""A job of ``cluster/`` sets this variable for its driver."""
ROOM_IN_JOB_S = 30 * 60.0
"""How long a search in a job waits for room. No person watches it, and a clean-up often makes room."""
SAY_EVERY_S = 60.0
POLL_S = 2.0
PROBE_BYTES = 1 << 20


class Disk:
    """The file system of a study's folder, as the driver's writes find it.

    Attributes:
        full: why the search ends, after it has waited in vain. Nothing is written from then on.
        stopped: called while waiting; says whether the search should end anyway.
    """

    def __init__(self, folder: Path, env: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        self.full: str | None = None
        self.stopped: Callable[[], bool] = lambda: False
        self._wait_s = ROOM_IN_JOB_S if env.get(JOB_VARIABLE) else 0.0

    def await_room(self, why: str, room: Callable[[], bool] | None = None) -> None:
        """Wait until there is room. ``why``: what was met, as ``describe_full_disk`` says it.

        Raises DiskFull if there is no room in time. Later calls raise it at once.
        """
        if self.full is None and self._wait(why, room or self._has_room):
            return
        self.full = self.full or why
        raise DiskFull(self.full)

    def trial_met(self, because: str) -> None:
        """A trial found no room for its checkpoint. Waits for room; without room it sets ``full`` and returns."""
        files = (self.folder / "checkpoints").glob("*/*.pt")
        # The checkpoint that found no room is about as large as the largest one there.
        need = max([PROBE_BYTES, *(path.stat().st_size for path in files)])
        with contextlib.suppress(DiskFull):
            self.await_room(because.rpartition(f"{NO_ROOM}: ")[2], lambda: self._has_room(need))

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

    def _wait(self, why: str, room: Callable[[], bool]) -> bool:
        began = time.monotonic()
        last_line_at = None
        while time.monotonic() - began < self._wait_s and not self.stopped():
            left_min = (self._wait_s - (time.monotonic() - began)) / 60
            if last_line_at is None or time.monotonic() - last_line_at >= SAY_EVERY_S:
                last_line_at = time.monotonic()
                print(
                    f"waiting for room: {why}. The search goes on as soon as it can write there, and ends in "
                    f"{left_min:.0f} min otherwise.",
                    file=sys.stderr,
                    flush=True,
                )
            if room():
                print("it can write again: the search continues", file=sys.stderr, flush=True)
                return True
            time.sleep(POLL_S)
        return False

    def _has_room(self, need_bytes: int = PROBE_BYTES) -> bool:
        """Whether so many bytes can be written. The number of free bytes does not show a quota."""
        probe = self.folder / f".room.{os.getpid()}"
        try:
            block = os.urandom(PROBE_BYTES)  # random bytes: a file system cannot compress them
            with probe.open("wb") as file:
                for _ in range(-(-need_bytes // PROBE_BYTES)):
                    file.write(block)
                file.flush()
                # Some quotas show only when the data reach the disk.
                os.fsync(file.fileno())
            return True
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()


class PatientJournal(JournalFileBackend):
    """Optuna's journal file, on a disk that may be full or read-only for a while."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(str(path))
        self._path, self._disk = path, disk

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        """Append the lines. Raises DiskFull if there is no room; the journal is then unchanged."""
        while True:
            size = os.path.getsize(self._path)
            try:
                return super().append_logs(logs)
            except OSError as error:
                self._undo(size)
                number = full_errno(error, self._path.parent)
                if number is None:
                    raise
            self._disk.await_room(describe_full_disk(number, self._path.parent))

    def _undo(self, size: int) -> None:
        """Cut off a partly written line. If more followed it, the journal could not be read."""
        with contextlib.suppress(OSError):
            if os.path.getsize(self._path) > size:
                os.truncate(self._path, size)


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


_ENDED = tuple(state for state in TrialState if state.is_finished())


def open_journal(path: Path, disk: Disk) -> QuickJournal:
    """The journal at ``path``, new or not. Raises ConfigError if a line of it cannot be read: nothing may follow it."""
    try:
        return QuickJournal(PatientJournal(path, disk))
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_journal(path.parent, f"it is damaged: {' '.join(str(error).split())[:120]}") from None


class QuickJournal(JournalStorage):
    """A ``JournalStorage`` whose lists of trials cost little.

    Attributes:
        visited: how many trials were looked at one by one, in Python.
    """

    def __init__(self, backend: BaseJournalBackend) -> None:
        self._listed: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self.visited = 0
        super().__init__(backend)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As Optuna's method. Raises KeyError if there is no such study."""
        with self._thread_lock:
            self._sync_with_backend()
            result = self._replay_result
            if states is None and len(result._studies) == 1 == len(result._study_id_to_trial_ids):
                result.get_study(study_id)
                found = list(result._trials.values())  # the only study's, in the order of their numbers
            elif states is not None and not any(state in states for state in _ENDED):
                found = [trial for trial in self._not_ended(study_id) if trial.state in states]
            else:
                found = result.get_all_trials(study_id, states)
            return copy.deepcopy(found) if deepcopy else found

    def _not_ended(self, study_id: int) -> list[FrozenTrial]:
        """The trials of a study that have not ended. One that has ended stays so."""
        result = self._replay_result
        result.get_study(study_id)
        ids = result._study_id_to_trial_ids[study_id]
        asked = [*self._open.get(study_id, ()), *ids[self._listed.get(study_id, 0) :]]
        self.visited += len(asked)
        found = [trial for trial in (result._trials[one] for one in asked) if not trial.state.is_finished()]
        self._open[study_id], self._listed[study_id] = [trial._trial_id for trial in found], len(ids)
        return found
