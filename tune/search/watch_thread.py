"""Watch a running search in its own thread, because the driver's thread may wait for Ray.

The thread reads the trials' progress, asks Ray's head why trials wait, prints that every minute, and ends a search that
can never continue. It only notes changes of a trial; ``tick`` makes them in the driver's thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from bigbatch.base.waits import HEAD_GONE_S, JOINED_GRACE_S, LAST_SAVE_S, OWN_GRACE_S
from bigbatch.train_loop.progress import WRITE_EVERY_S, StepProgress, read_progress
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.watchdog import Watchdog, WatchedTrial
from bigbatch.tune.trials.cluster_view import ClusterView, RayHead

LOOK_S = 0.5
ASK_S = 5.0
"""Time between two questions to Ray's head. While a trial waits it is ``LOOK_S``."""
WAIT_S = 2.0
"""A trial counts as waiting after this time. Earlier, Tune may still give it the place of a trial that just ended."""


class ClusterLost(BaseException):
    """The cluster is gone. It is no Exception, because Tune would then ask the dead cluster to clean up."""


class WatchdogListener(Protocol):
    """Receives the watchdog's lines, in the watchdog's thread."""

    def search_said(self, text: str) -> None:
        """Show a line."""


class Trials(Protocol):
    """What hears, in the driver's thread, how trials are: the bridge."""

    def runs(self, number: int, steps: StepProgress | None = None) -> None: ...

    def waits(self, number: int, at: float) -> None: ...


class HeadPoller:
    """Asks Ray's head again and again, in its own thread, because one question may hang for a minute."""

    def __init__(self, head: Callable[[], RayHead] = RayHead) -> None:
        self._head = head
        self._over, self._now = threading.Event(), threading.Event()
        self.often = False
        self.view: ClusterView | None = None
        self.asked_at = self.answered_at = time.monotonic()
        """When the question for ``view`` was sent, and when its answer came."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, daemon=True, name="ray-head").start()

    def stop(self) -> None:
        """End the thread after its current question."""
        self._over.set()
        self._now.set()

    def hurry(self) -> None:
        """Ask at once."""
        self._now.set()

    def _run(self) -> None:
        head: RayHead | None = None
        while not self._over.is_set():
            asked_at = time.monotonic()
            with suppress(Exception):  # any error of Ray's transport means: no answer
                head = head or self._head()
                self.view = head.ask()
                self.asked_at, self.answered_at = asked_at, time.monotonic()
            self._now.wait(LOOK_S if self.often else ASK_S)
            self._now.clear()


class SearchWatch:
    """An observer of the search, and the thread that watches it.

    Args:
        bridge: receives the noted changes, in the driver's thread.
        progress_of: from a trial's number to the file in which its worker reports progress.
        tellers: receive each line, in the watching thread.
        give_up: called once, in the watching thread, with the reason why the search can never continue.
    """

    def __init__(
        self,
        bridge: Trials,
        progress_of: Callable[[int], Path],
        tellers: Sequence[WatchdogListener],
        give_up: Callable[[str], None],
        watchdog: Watchdog,
        asker: HeadPoller,
    ) -> None:
        self._bridge, self._progress_of, self._tellers, self._give_up = bridge, progress_of, tellers, give_up
        self._watchdog, self._asker = watchdog, asker
        self._lock, self._over = threading.Lock(), threading.Event()
        self._trials: dict[int, WatchedTrial] = {}
        self._read: dict[int, StepProgress] = {}
        self._notes: list[Callable[[], None]] = []
        self._next_read = 0.0

    # An observer, in the driver's thread

    def trial_planned(self, trial: TrialView) -> None:
        """Begin to watch a trial that is handed to Ray."""
        now = time.monotonic()
        with suppress(OSError), self._lock:
            self._trials[trial.number] = WatchedTrial(trial.number, trial.asks, now, now)
            self._progress_of(trial.number).write_text("")  # a worker writes only to a file that exists
        self._asker.hurry()

    def trial_started(self, trial: TrialView) -> None:
        """Note that the trial's first worker runs."""
        self._heard(trial.number, "it began")

    def epoch_ended(self, trial: TrialView, record: dict[str, object]) -> None:
        """Note that the trial is alive."""
        self._heard(trial.number, f"it ended epoch {record['epoch']}")

    def trial_ended(self, trial: TrialView) -> None:
        """Stop watching the trial and remove its progress file."""
        with self._lock:
            self._trials.pop(trial.number, None)
            self._read.pop(trial.number, None)
        with suppress(OSError):
            self._progress_of(trial.number).unlink(missing_ok=True)

    def _heard(self, number: int, word: str) -> None:
        with self._lock:
            if trial := self._trials.get(number):
                trial.phase = "running"
                self._watchdog.heard(trial, time.monotonic(), word)

    @property
    def lost(self) -> bool:
        """Whether the cluster is gone."""
        return self._watchdog.gone

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
                self._say(line)
            if self._watchdog.verdict and not given_up:
                given_up = True
                self._give_up(self._watchdog.verdict)

    def look(self) -> list[str]:
        """Look at trials and cluster once. Returns the lines to print now."""
        now = time.monotonic()
        self._read_progress(now)
        with self._lock:
            self._find_those_that_wait()
            self._asker.often = any(trial.phase != "running" for trial in self._trials.values())
            trials = list(self._trials.values())
            return self._watchdog.look(now, trials, self._asker.view, self._asker.answered_at)

    def _read_progress(self, now: float) -> None:
        for number in self._due(now):
            entry = read_progress(self._progress_of(number))
            with self._lock:
                trial = self._trials.get(number)
                if trial is None or entry is None or entry == self._read.get(number):
                    continue
                self._read[number] = entry
                trial.phase = "running"
                self._watchdog.heard(trial, now, str(entry) if entry.epoch else "its worker began")
                self._notes.append(partial(self._bridge.runs, number, entry))

    def _due(self, now: float) -> list[int]:
        """Trials whose progress file is due: always until a worker runs, then as often as the worker writes."""
        with self._lock:
            due = [n for n, trial in self._trials.items() if trial.phase != "running" or now >= self._next_read]
        if now >= self._next_read:
            self._next_read = now + WRITE_EVERY_S
        return due

    def _find_those_that_wait(self) -> None:
        """Find the trials that wait. A placement group does not name its trial: the last ones handed over must wait."""
        view, asked_at = self._asker.view, self._asker.asked_at
        begun = [trial for trial in self._trials.values() if trial.phase != "running"]
        known = sorted((trial for trial in begun if trial.since <= asked_at), key=lambda trial: trial.since)
        without = min(len(view.groups), len(known)) if view else 0  # other groups belong to lost nodes or newer trials
        for trial in known[: len(known) - without]:
            trial.phase = "starting"
        late = [trial for trial in known[len(known) - without :] if asked_at - trial.since >= WAIT_S]
        for trial in late:
            trial.phase = "waiting"
            self._notes.append(partial(self._bridge.waits, trial.number, asked_at))

    def _say(self, line: str) -> None:
        for teller in self._tellers:
            with suppress(Exception):  # the reader may be gone
                teller.search_said(line)


def make_watch(
    bridge: Trials,
    progress_of: Callable[[int], Path],
    tellers: Sequence[WatchdogListener],
    give_up: Callable[[str], None],
    *,
    own_ray: bool,
    address: str,
) -> SearchWatch:
    """The watch over a search. Inside a job of ``cluster/``, the job itself decides when Ray's head is gone."""
    in_job = bool(os.environ.get("BIGBATCH_JOB_FOLDER"))
    watchdog = Watchdog(
        time.monotonic(),
        grace_s=OWN_GRACE_S if own_ray else JOINED_GRACE_S,
        gone_s=None if in_job else HEAD_GONE_S,
        address=address,
    )
    return SearchWatch(bridge, progress_of, tellers, give_up, watchdog, HeadPoller())


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
