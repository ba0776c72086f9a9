"""Watch a running search in its own thread, because the driver's thread may wait for Ray.

The thread reads the trials' progress and names trials that are silent. It only notes changes of a trial; ``tick`` makes
them in the driver's thread.

``Watchdog`` decides what is said. It uses no thread or clock. A trial is silent if it has not reported for three times
the longest pause so far between two reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bigbatch.train_loop.progress import WRITE_EVERY_S, StepProgress, read_progress
from bigbatch.tune.console.display import duration
from bigbatch.tune.runs.run import Run

LEAST_SILENCE_S = 60.0
"""A shorter silence is never reported: workers may start, or validate."""
TIMES_LONGEST = 3.0
EVERY_S = 60.0
"""Time between two lines."""
POLL_S = 0.5
HANDED = "it was handed to Ray, which starts its workers where their cores or GPUs are free"


@dataclass
class WatchedTrial:
    """A trial that Ray works on."""

    number: int
    heard_at: float
    """When the trial last reported something new, by the monotonic clock."""
    last_word: str = HANDED
    runs: bool = False
    """Whether a worker has begun."""


class Watchdog:
    """Says which trials are silent. Looks at them about once a second."""

    def __init__(self, now: float) -> None:
        self._longest_s = self._next_line = 0.0
        self._busy_at = now

    def heard(self, trial: WatchedTrial, now: float, word: str) -> None:
        """Take in a trial's report; ``word`` describes it."""
        self._longest_s = max(self._longest_s, now - trial.heard_at)
        trial.heard_at, trial.last_word, trial.runs = now, word, True

    def look(self, now: float, trials: Sequence[WatchedTrial]) -> str | None:
        """The line to print now; None: there is none."""
        self._busy_at = now if trials else self._busy_at
        expected = max(LEAST_SILENCE_S, TIMES_LONGEST * self._longest_s)
        found = [
            f"trial {trial.number} has not reported for {duration(now - trial.heard_at)}; "
            f"last report: {trial.last_word}"
            for trial in trials
            if now - trial.heard_at >= expected
        ]
        if now - self._busy_at >= LEAST_SILENCE_S:
            found.append(f"no trial is running, and none has begun for {duration(now - self._busy_at)}")
        if not found or now < self._next_line:
            return None
        self._next_line = now + EVERY_S
        return "; ".join(found)


class SearchWatch:
    """An observer of the search, and the thread that watches it.

    Args:
        runs: called in the driver's thread when the progress of a trial has changed: with its number, and where it is.
        progress_of: from a trial's number to the file in which its worker reports progress.
        tellers: displays, whose ``search_said`` and ``note`` receive each line, in the watching thread.
    """

    def __init__(
        self,
        runs: Callable[[int, StepProgress], None],
        progress_of: Callable[[int], Path],
        tellers: Sequence[object],
    ) -> None:
        self._runs, self._progress_of, self._tellers = runs, progress_of, tellers
        self._watchdog = Watchdog(time.monotonic())
        self._lock, self._over = threading.Lock(), threading.Event()
        self._trials: dict[int, WatchedTrial] = {}
        self._read: dict[int, StepProgress] = {}
        self._notes: list[Callable[[], None]] = []
        self._next_read = 0.0

    # An observer, in the driver's thread

    def trial_planned(self, trial: Run) -> None:
        """Begin to watch a trial that is handed to Ray."""
        with suppress(OSError), self._lock:
            self._trials[trial.number] = WatchedTrial(trial.number, time.monotonic())
            self._progress_of(trial.number).write_text("")  # a worker writes only to a file that exists

    def epoch_ended(self, trial: Run, record: dict[str, object]) -> None:
        """Note that the trial is alive."""
        with self._lock:
            if watched := self._trials.get(trial.number):
                self._watchdog.heard(watched, time.monotonic(), f"it ended epoch {record['epoch']}")

    def trial_ended(self, trial: Run) -> None:
        """Stop watching the trial and remove its progress file."""
        with self._lock:
            self._trials.pop(trial.number, None)
            self._read.pop(trial.number, None)
        with suppress(OSError):
            self._progress_of(trial.number).unlink(missing_ok=True)

    def tick(self) -> None:
        """Make the noted changes."""
        with self._lock:
            notes, self._notes = self._notes, []
        for note in notes:
            note()

    # The thread

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch within the ``with`` block."""
        threading.Thread(target=self._run, daemon=True, name="watch").start()
        try:
            yield
        finally:
            self._over.set()

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            if line := self.look():
                self._tell("search_said", line)

    def look(self) -> str | None:
        """Look at the trials once. Returns the line to print now."""
        now = time.monotonic()
        self._read_progress(now)
        with self._lock:
            return self._watchdog.look(now, list(self._trials.values()))

    def _read_progress(self, now: float) -> None:
        """Read the files that are due: always until a worker runs, then as often as the worker writes."""
        with self._lock:
            due = [number for number, trial in self._trials.items() if not trial.runs or now >= self._next_read]
        if now >= self._next_read:
            self._next_read = now + WRITE_EVERY_S
        for number in due:
            entry = read_progress(self._progress_of(number))
            with self._lock:
                trial = self._trials.get(number)
                if trial is not None and entry is not None and entry != self._read.get(number):
                    self._read[number] = entry
                    self._watchdog.heard(trial, now, str(entry) if entry.epoch else "its worker began")
                    self._notes.append(partial(self._runs, number, entry))

    def note(self, line: str) -> None:
        """Show a line that stays, while trials are shown. Any thread may call this."""
        if not self._over.is_set():
            self._tell("note", line)

    def _tell(self, how: str, line: str) -> None:
        for teller in self._tellers:
            with suppress(Exception):  # the reader may be gone
                getattr(teller, how)(line)
