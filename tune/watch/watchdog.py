"""When a search waits, why it waits, and when it can never go on. No Ray, threads or clocks in here.

A trial that waits for resources, and one of which nothing was heard for longer than expected, get a line a minute with
the reason that Ray gives. Expected is three times the longest pause between two words of any trial so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.tune.watch.cluster_view import ClusterView, nowhere, reason
from bigbatch.tune.watch.observer import Phase

LEAST_SILENCE_S = 60.0
"""Nothing is said of shorter ones: starts of workers, validations."""
TIMES_LONGEST = 3.0
EVERY_S = 60.0
"""Between two lines."""
WAIT_IS_NEWS_S = 60.0
"""A wait for resources that will come free gets its first line; one for what no node has gets it at once."""
HOPELESS_LINE_S = 5.0
"""Nodes that are just joining are waited for so long before that line."""
OWN_GRACE_S = 30.0
"""How long nothing may fit before a search on its own Ray gives up: no node ever joins that."""
JOINED_GRACE_S = 600.0
"""The same on a cluster that was joined: another allocation may attach nodes, a lost one may come back."""
UNANSWERED_LINE_S = 15.0
GONE_S = 40.0
"""So long without an answer the head of the cluster is gone. Ray itself ends the driver's process after 60 s, which
leaves time to save."""


@dataclass
class Watched:
    """A trial that Ray works on. Times are of one monotonic clock."""

    number: int
    asks: str
    since: float
    """When it was handed to Ray."""
    heard_at: float
    """When something new of it was last heard."""
    phase: Phase = "starting"
    last_word: str = "it was handed to Ray"


class Watchdog:
    """Looks at the trials about once a second.

    Args:
        grace_s: how long nothing may fit before ``verdict`` says so.
        gone_s: how long the head may be silent before ``verdict`` says so; None where others decide that.
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
        """Why the search can never go on."""
        self.gone = False
        """The verdict is that there is no cluster any more."""

    def heard(self, trial: Watched, now: float, word: str) -> None:
        """Something new of a trial."""
        self._longest_s = max(self._longest_s, now - trial.heard_at)
        trial.heard_at, trial.last_word = now, word

    def look(self, now: float, trials: Sequence[Watched], view: ClusterView | None, answered_at: float) -> list[str]:
        """What is to be said now. ``view``: the last answer, which came ``answered_at``."""
        passed = min(now - self._looked_at, 5.0)  # a machine that slept, slept for all
        self._looked_at = now
        lines = self._deaths(view)
        # A Ray that never answered may be one that is asked in another way.
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
            found.append(f"no trial is at work, and none has begun for {clock(now - self._busy_at)}")
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

    def _delays(self, now: float, trials: Sequence[Watched], view: ClusterView | None) -> list[str]:
        """A clause for each trial that waits, or is silent, for longer than expected."""
        groups = list(view.groups) if view else []
        waiting = [trial for trial in trials if trial.phase == "waiting"]
        expected = max(LEAST_SILENCE_S, TIMES_LONGEST * self._longest_s)
        found = []
        for trial in waiting:
            why = reason(groups[0], view) if groups and view else "Ray does not say why"
            hopeless = bool(groups and view and nowhere(groups[0], view.nodes))
            if now - trial.since >= (HOPELESS_LINE_S if hopeless else WAIT_IS_NEWS_S):
                found.append(f"trial {trial.number} has waited {clock(now - trial.since)} for {trial.asks}: {why}")
        lost = groups[len(waiting) :]  # of trials that ran already
        for trial in trials:
            if trial.phase != "waiting" and now - trial.heard_at >= (HOPELESS_LINE_S if lost else expected):
                silent = clock(now - trial.heard_at)
                why = f"; {reason(lost[0], view)}" if lost and view else ""
                found.append(f"trial {trial.number} has said nothing for {silent}; before, {trial.last_word}{why}")
        return found


def _stuck(trials: Sequence[Watched], view: ClusterView | None) -> str | None:
    """Why no trial can run, where there are trials and none of them has, or can get, a place."""
    if view is None or not trials:
        return None
    why = [nowhere(group, view.nodes) for group in view.groups]
    hopeless = [text for text in why if text]
    return hopeless[0] if len(hopeless) >= len(trials) else None


def clock(seconds: float) -> str:
    """``75`` → ``1:15``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
