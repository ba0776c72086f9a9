"""Watch a running search in its own thread, because the driver's thread may wait for Ray.

The thread reads the trials' progress, names trials that are silent, and ends a search whose Ray is gone. It only notes
changes of a trial; ``tick`` makes them in the driver's thread.

``Watchdog`` decides what is said. It uses no Ray, thread or clock. A trial is silent if it has not reported for three
times the longest pause so far between two reports.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bigbatch.base.waits import LAST_SAVE_S, RAY_ANSWER_S, UNANSWERED_LINE_S
from bigbatch.train_loop.launch.ray_internals import head_client
from bigbatch.train_loop.progress import WRITE_EVERY_S, StepProgress, read_progress
from bigbatch.tune.runs.observer import TrialView

LEAST_SILENCE_S = 60.0
"""A shorter silence is never reported: workers may start, or validate."""
TIMES_LONGEST = 3.0
EVERY_S = 60.0
"""Time between two lines."""
LOOK_S = 0.5
ASK_S = 5.0
"""Time between two questions to Ray's head."""
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
    """Looks at the trials about once a second.

    Args:
        gone_s: how long the head may be silent before there is a ``verdict``. None: something else decides that.
    """

    def __init__(self, now: float, *, gone_s: float | None, address: str = "") -> None:
        self._gone_s, self._address = gone_s, address
        self._longest_s = self._next_line = self._unanswered_s = 0.0
        self._looked_at = self._busy_at = now
        self._answered_at: float | None = None
        self.verdict: str | None = None
        """Why the search can never continue: the cluster is gone. None while it can."""

    def heard(self, trial: WatchedTrial, now: float, word: str) -> None:
        """Take in a trial's report; ``word`` describes it."""
        self._longest_s = max(self._longest_s, now - trial.heard_at)
        trial.heard_at, trial.last_word, trial.runs = now, word, True

    def look(self, now: float, trials: Sequence[WatchedTrial], answered_at: float | None) -> list[str]:
        """The lines to print now. ``answered_at``: when Ray's last answer came."""
        passed = min(now - self._looked_at, 5.0)  # at most 5 s: while the machine slept, nobody could answer
        # A Ray that has never answered may need another kind of question: its silence means nothing.
        silent = answered_at is not None and answered_at == self._answered_at
        self._unanswered_s = self._unanswered_s + passed if silent else 0.0
        self._looked_at, self._answered_at = now, answered_at
        if self._unanswered_s >= UNANSWERED_LINE_S:
            found = [f"Ray's head at {self._address} has not answered for {clock(self._unanswered_s)}"]
            if self._gone_s is not None and self._unanswered_s >= self._gone_s:
                self.verdict = self.verdict or f"the Ray cluster is gone: {found[0]}"
        else:
            found = self._silences(now, trials)
        if not found or now < self._next_line:
            return []
        self._next_line = now + EVERY_S
        return ["; ".join(found)]

    def _silences(self, now: float, trials: Sequence[WatchedTrial]) -> list[str]:
        self._busy_at = now if trials else self._busy_at
        expected = max(LEAST_SILENCE_S, TIMES_LONGEST * self._longest_s)
        found = [
            f"trial {trial.number} has not reported for {clock(now - trial.heard_at)}; last report: {trial.last_word}"
            for trial in trials
            if now - trial.heard_at >= expected
        ]
        if now - self._busy_at >= LEAST_SILENCE_S:
            found.append(f"no trial is running, and none has begun for {clock(now - self._busy_at)}")
        return found


def clock(seconds: float) -> str:
    """``75`` → ``1:15``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class ClusterLost(BaseException):
    """The cluster is gone. It is no Exception, because Tune would then ask the dead cluster to clean up."""


class WatchdogListener(Protocol):
    """Receives lines of other threads than the driver's."""

    def search_said(self, text: str) -> None:
        """Show a line of the watchdog."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


class HeadPoller:
    """Asks Ray's head again and again, in its own thread, because one question may hang for a minute."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.answered_at: float | None = None
        """When the last answer came; None before the first."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, daemon=True, name="ray-head").start()

    def stop(self) -> None:
        """End the thread after its current question."""
        self._over.set()

    def _run(self) -> None:
        client: Any = None
        while not self._over.is_set():
            with suppress(Exception):  # any error of Ray's transport means: no answer
                import ray

                client = client or head_client(ray.get_runtime_context().gcs_address)
                client.get_all_node_info(timeout=RAY_ANSWER_S)
                self.answered_at = time.monotonic()
            self._over.wait(ASK_S)


class SearchWatch:
    """An observer of the search, and the thread that watches it.

    Args:
        runs: called in the driver's thread when the progress of a trial has changed: with its number, and where it is.
        progress_of: from a trial's number to the file in which its worker reports progress.
        tellers: receive each line, in the watching thread.
        give_up: called once, in the watching thread, with the reason why the search can never continue.
    """

    def __init__(
        self,
        runs: Callable[[int, StepProgress], None],
        progress_of: Callable[[int], Path],
        tellers: Sequence[WatchdogListener],
        give_up: Callable[[str], None],
        watchdog: Watchdog,
        asker: HeadPoller,
    ) -> None:
        self._runs, self._progress_of, self._tellers, self._give_up = runs, progress_of, tellers, give_up
        self._watchdog, self._asker = watchdog, asker
        self._lock, self._over = threading.Lock(), threading.Event()
        self._trials: dict[int, WatchedTrial] = {}
        self._read: dict[int, StepProgress] = {}
        self._notes: list[Callable[[], None]] = []
        self._next_read = 0.0

    # An observer, in the driver's thread

    def trial_planned(self, trial: TrialView) -> None:
        """Begin to watch a trial that is handed to Ray."""
        with suppress(OSError), self._lock:
            self._trials[trial.number] = WatchedTrial(trial.number, time.monotonic())
            self._progress_of(trial.number).write_text("")  # a worker writes only to a file that exists

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Note that the trial is alive."""
        with self._lock:
            if watched := self._trials.get(trial.number):
                self._watchdog.heard(watched, time.monotonic(), f"it ended epoch {record['epoch']}")

    def trial_ended(self, trial: TrialView) -> None:
        """Stop watching the trial and remove its progress file."""
        with self._lock:
            self._trials.pop(trial.number, None)
            self._read.pop(trial.number, None)
        with suppress(OSError):
            self._progress_of(trial.number).unlink(missing_ok=True)

    @property
    def lost(self) -> bool:
        """Whether the cluster is gone."""
        return self._watchdog.verdict is not None

    def tick(self) -> None:
        """Make the noted changes. Raises ClusterLost if the cluster is gone."""
        with self._lock:
            notes, self._notes = self._notes, []
        for note in notes:
            note()
        if self.lost:
            raise ClusterLost(self._watchdog.verdict)

    # The thread

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch within the ``with`` block."""
        self._asker.start()
        threading.Thread(target=self._run, daemon=True, name="watch").start()
        try:
            yield
        finally:
            self._over.set()
            self._asker.stop()

    def _run(self) -> None:
        given_up = False
        while not self._over.wait(LOOK_S):
            for line in self.look():
                self._tell("search_said", line)
            if self._watchdog.verdict and not given_up:
                given_up = True
                self._give_up(self._watchdog.verdict)

    def look(self) -> list[str]:
        """Look at trials and cluster once. Returns the lines to print now."""
        now = time.monotonic()
        self._read_progress(now)
        with self._lock:
            return self._watchdog.look(now, list(self._trials.values()), self._asker.answered_at)

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


def end_process_unless_done(save: Callable[[], None]) -> threading.Timer:
    """A timer that saves and ends this process with code 1. The driver cancels it when it can end in order."""

    def end() -> None:
        with suppress(Exception):
            save()  # whatever fails here, the process must end
        # os._exit, unlike an orderly end, writes no buffers, and waits for no thread that hangs in Ray.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(LAST_SAVE_S, end)
    # An end in order must not wait for it.
    timer.daemon = True
    timer.start()
    return timer
