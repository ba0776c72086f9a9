"""Decide when a search waits, why it waits, and when it can never continue. This module uses no Ray, thread or clock.

It writes a line every minute for a trial that waits for resources, and for one that is silent for longer than expected,
with the reason that Ray gives. "Expected" is three times the longest pause so far between two reports of a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.base.waits import HOPELESS_LINE_S, UNANSWERED_LINE_S
from bigbatch.tune.runs.observer import Phase
from bigbatch.tune.trials.cluster_view import ClusterView, why_it_fits_nowhere, why_it_waits

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
