"""Watch a running search in its own thread, because the driver's thread may wait for Ray.

The thread reads the trials' progress, asks Ray's head why trials wait, prints that every minute, and ends a search that
can never continue. It only notes changes of a trial; ``tick`` makes them in the driver's thread.

``Watchdog`` decides when a search waits, why it waits, and when it can never continue. It uses no Ray, thread or clock.
It writes a line every minute for a trial that waits for resources, and for one that is silent for longer than expected,
with the reason that Ray gives. "Expected" is three times the longest pause so far between two reports of a trial.
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
from typing import Protocol

from bigbatch.base.waits import HOPELESS_LINE_S, LAST_SAVE_S, UNANSWERED_LINE_S
from bigbatch.train_loop.progress import WRITE_EVERY_S, StepProgress, read_progress
from bigbatch.tune.runs.observer import Phase, TrialView
from bigbatch.tune.search.interrupts import SEARCHING, StopRequest
from bigbatch.tune.trials.cluster_view import ClusterView, RayHead, why_it_fits_nowhere, why_it_waits

LEAST_SILENCE_S = 60.0
"""A shorter silence is never reported: workers may start, or validate."""
TIMES_LONGEST = 3.0
EVERY_S = 60.0
"""Time between two lines."""
WAIT_IS_NEWS_S = 60.0
"""After this time a wait for busy resources gets its first line. A wait that no node can satisfy gets it earlier."""


@dataclass
class WatchedTrial:
    """A trial that Ray works on. All times are seconds of one monotonic clock."""

    number: int
    asks: str
    since: float
    """When the trial was handed to Ray."""
    heard_at: float
    """When the trial last reported something new."""
    phase: Phase = "starting"
    last_word: str = "it was handed to Ray"


class Watchdog:
    """Looks at the trials about once a second.

    Args:
        grace_s: how long no trial may fit before there is a ``verdict``.
        gone_s: how long the head may be silent before there is a ``verdict``. None: something else decides that.
    """

    def __init__(self, now: float, *, grace_s: float, gone_s: float | None, address: str = "") -> None:
        self._grace_s, self._gone_s, self._address = grace_s, gone_s, address
        self._longest_s = 0.0
        self._looked_at = now
        self._next_line = 0.0
        self._stuck_s = self._unanswered_s = 0.0
        self._answered_at = now
        self._dead: set[str] | None = None
        self._busy_at = now
        self.verdict: str | None = None
        """Why the search can never continue; None while it can."""
        self.gone = False
        """Whether the verdict is that the cluster is gone."""

    def heard(self, trial: WatchedTrial, now: float, word: str) -> None:
        """Take in a trial's report; ``word`` describes it."""
        self._longest_s = max(self._longest_s, now - trial.heard_at)
        trial.heard_at, trial.last_word = now, word

    def look(
        self, now: float, trials: Sequence[WatchedTrial], view: ClusterView | None, answered_at: float
    ) -> list[str]:
        """The lines to print now. ``view``: Ray's last answer, which came at ``answered_at``."""
        passed = min(now - self._looked_at, 5.0)  # at most 5 s: while the machine slept, nobody could answer
        self._looked_at = now
        lines = self._deaths(view)
        # A Ray that has never answered may need another kind of question: its silence means nothing.
        silent = view is not None and answered_at <= self._answered_at
        self._unanswered_s = self._unanswered_s + passed if silent else 0.0
        self._answered_at = answered_at
        if self._unanswered_s >= UNANSWERED_LINE_S:
            return lines + self._no_answer(now)
        stuck = _stuck(trials, view)
        self._stuck_s = self._stuck_s + passed if stuck else 0.0
        self._busy_at = now if trials else self._busy_at
        found = self._delays(now, trials, view)
        if now - self._busy_at >= LEAST_SILENCE_S:
            found.append(f"no trial is running, and none has begun for {clock(now - self._busy_at)}")
        if found and now >= self._next_line:
            self._next_line = now + EVERY_S
            lines.append("; ".join(found))
        if stuck and self._stuck_s >= self._grace_s and self.verdict is None:
            self.verdict = f"no trial can ever run: {stuck}; waited {clock(self._stuck_s)} for more nodes"
        return lines

    def _deaths(self, view: ClusterView | None) -> list[str]:
        """Nodes that have died since the search began."""
        if view is None:
            return []
        dead = {node.name: node.died_of for node in view.nodes if not node.alive}
        alive = {node.name for node in view.living}
        # A node that was started again has a living entry beside its dead one.
        new = [] if self._dead is None else sorted(set(dead) - self._dead - alive)
        self._dead = set(dead) - alive
        return [f"Ray's node {name} has died: {dead[name] or 'no reason is given'}" for name in new]

    def _no_answer(self, now: float) -> list[str]:
        silent = clock(self._unanswered_s)
        if self._gone_s is not None and self._unanswered_s >= self._gone_s and self.verdict is None:
            self.gone = True
            self.verdict = f"the Ray cluster is gone: its head at {self._address} has not answered for {silent}"
        if now < self._next_line:
            return []
        self._next_line = now + EVERY_S
        return [f"Ray's head at {self._address} has not answered for {silent}"]

    def _delays(self, now: float, trials: Sequence[WatchedTrial], view: ClusterView | None) -> list[str]:
        """A clause for each trial that waits, or is silent, longer than expected."""
        groups = list(view.groups) if view else []
        waiting = [trial for trial in trials if trial.phase == "waiting"]
        expected = max(LEAST_SILENCE_S, TIMES_LONGEST * self._longest_s)
        found = []
        for trial in waiting:
            # All trials ask alike, so one group's reason is that of all.
            why = why_it_waits(groups[0], view) if groups and view else "Ray does not say why"
            hopeless = bool(groups and view and why_it_fits_nowhere(groups[0], view.nodes))
            if now - trial.since >= (HOPELESS_LINE_S if hopeless else WAIT_IS_NEWS_S):
                found.append(f"trial {trial.number} has waited {clock(now - trial.since)} for {trial.asks}: {why}")
        lost = groups[len(waiting) :]  # groups of trials that ran before their node was lost
        for trial in trials:
            if trial.phase != "waiting" and now - trial.heard_at >= (HOPELESS_LINE_S if lost else expected):
                silent = clock(now - trial.heard_at)
                why = f"; {why_it_waits(lost[0], view)}" if lost and view else ""
                found.append(f"trial {trial.number} has not reported for {silent}; last report: {trial.last_word}{why}")
        return found


def _stuck(trials: Sequence[WatchedTrial], view: ClusterView | None) -> str | None:
    """Why no trial can run; None if there are no trials, or one of them has a place or can get one."""
    if view is None or not trials:
        return None
    why = [why_it_fits_nowhere(group, view.nodes) for group in view.groups]
    hopeless = [text for text in why if text]
    return hopeless[0] if len(hopeless) >= len(trials) else None


def clock(seconds: float) -> str:
    """``75`` → ``1:15``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


LOOK_S = 0.5
ASK_S = 5.0
"""Time between two questions to Ray's head. While a trial waits it is ``LOOK_S``."""
WAIT_S = 2.0
"""A trial counts as waiting after this time. Earlier, Tune may still give it the place of a trial that just ended."""


class ClusterLost(BaseException):
    """The cluster is gone. It is no Exception, because Tune would then ask the dead cluster to clean up."""


class WatchdogListener(Protocol):
    """Receives lines of other threads than the driver's."""

    def search_said(self, text: str) -> None:
        """Show a line of the watchdog."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


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
        stop: a signal that ends the search is acknowledged.
    """

    def __init__(
        self,
        bridge: Trials,
        progress_of: Callable[[int], Path],
        tellers: Sequence[WatchdogListener],
        give_up: Callable[[str], None],
        watchdog: Watchdog,
        asker: HeadPoller,
        stop: StopRequest,
    ) -> None:
        self._bridge, self._progress_of, self._tellers, self._give_up = bridge, progress_of, tellers, give_up
        self._watchdog, self._asker, self._stop = watchdog, asker, stop
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
        given_up = acknowledged = False
        while not self._over.wait(LOOK_S):
            if self._stop.signal is not None and not acknowledged:
                acknowledged = True
                self.note(SEARCHING)
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

    def note(self, line: str) -> None:
        """Show a line that stays, while trials are shown. Any thread may call this."""
        if not self._over.is_set():
            for teller in self._tellers:
                with suppress(Exception):
                    teller.note(line)

    def _say(self, line: str) -> None:
        for teller in self._tellers:
            with suppress(Exception):  # the reader may be gone
                teller.search_said(line)


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
