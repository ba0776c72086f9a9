"""Say whether a budget of device hours or of time has room for another trial, and when it is spent.

The budget counts what Slurm bills: the devices that the search holds × wall time, idle ones included. So the question
before a trial starts is when the search would end with it, not what the trial costs by itself: until the last trial
ends, all devices are billed. The trials that already run were asked about when they began. If they have become slower
since, another trial beside them costs nothing more, as long as it ends in time itself. On a cluster that the search
does not own only trials count; there the question is what they all still take together.

A new trial is admitted if its whole run fits, a continuation if the rest of its run fits. So a trial that could never
be finished does not take devices. If early stopping then ends trials sooner, the freed time is offered again. Times
come from the study (``tune/budget/pace.py``). Before anything was measured, trials are admitted: without them nothing
would ever be known. What then proves too long is stopped with a checkpoint when the budget is spent.

Beside a trial of the search there must be room for the confirmations that follow it: they begin when all trials of the
search have ended, and run beside each other then.

There is no clock and no Ray in here but what is passed in, so a replay uses the same code.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbatch.tune.budget.pace import ENDING_S, Pace, PaceKey, PaceRun

BUDGET_SPENT = "the budget of GPU hours is spent"
TIME_SPENT = "the time budget is spent"
NO_ROOM_IN_BUDGET = "the rest of the budget of GPU hours is too short for another trial"
NO_ROOM_IN_TIME = "the rest of the time budget is too short for another trial"
KEPT_MARGIN = 1.05
"""This multiple of the median times is kept back: of runs at the same time, the slowest one counts."""
MOST_KEPT = 0.5
"""Runs that exceed the whole budget keep this part of it back."""


@dataclass(frozen=True)
class Limits:
    """What a search may use. None: no limit."""

    device_s: float | None = None
    """Device seconds of the whole study."""
    time_s: float | None = None
    """Seconds of this session, from its beginning."""


@dataclass
class _Run:
    """A trial that has begun."""

    key: PaceKey
    devices: float
    epochs_left: int
    since: float
    """When it started, or its last epoch ended."""
    starts: bool = True
    """Whether no epoch has ended since it started."""


class Budget:
    """The budget of one search.

    Args:
        limits: without any limit, everything is admitted.
        pace: the measured times. This object adds what it sees.
        held_s: returns the device seconds that the study has used, over all sessions.
        devices: returns the devices that are billed now. None: those of running trials.
        clock: seconds.
        ending_s: how long an end of the search takes, beside its checkpoints.
        began: when the session began, by the clock. None: now.
    """

    def __init__(
        self,
        limits: Limits,
        pace: Pace,
        *,
        held_s: Callable[[], float],
        devices: Callable[[], float | None],
        clock: Callable[[], float],
        ending_s: float = ENDING_S,
        began: float | None = None,
    ) -> None:
        self._limits, self.pace = limits, pace
        self._held_s, self._devices, self._clock = held_s, devices, clock
        self._ending_s, self._checkpoint_s = ending_s, 0.0
        self._made_at = clock()
        self._ends_at = math.inf if limits.time_s is None else (clock() if began is None else began) + limits.time_s
        self.first_start_s: float | None = None
        """From the moment at which this object was made to the first step of a trial; None before it."""
        self._runs: dict[int, _Run] = {}
        self._most_at_once = 1
        self.refused: str | None = None
        """Why the last trial that was asked about was not admitted; None if it was."""

    # What happens

    def begins(self, number: int, key: PaceKey, epochs_left: int, devices: float) -> None:
        """Note that a trial has begun."""
        self._runs[number] = _Run(key, devices, epochs_left, self._clock())
        self._most_at_once = max(self._most_at_once, len(self._runs))

    def epoch_ended(self, number: int, seconds: float, checkpoint_s: float = 0.0) -> None:
        """Note that a trial has finished an epoch.

        Args:
            seconds: what the epoch took.
            checkpoint_s: what a checkpoint takes to be written.
        """
        run = self._runs.get(number)
        self._checkpoint_s = max(self._checkpoint_s, checkpoint_s)
        if run is None:
            return
        self.pace.add_epoch(run.key, seconds)
        now = self._clock()
        if run.starts:
            start_s = now - run.since - seconds
            self.pace.add_start(start_s)
            if self.first_start_s is None:
                self.first_start_s = max(0.0, now - seconds - self._made_at)
        run.epochs_left, run.since, run.starts = max(0, run.epochs_left - 1), now, False

    def ends(self, number: int) -> None:
        """Note that a trial does not run any more."""
        self._runs.pop(number, None)

    # What is asked

    def admits(self, key: PaceKey, epochs_left: int, devices: float, kept: Sequence[PaceRun] = ()) -> bool:
        """Whether a trial may start now and train ``epochs_left`` epochs. If not, ``refused`` says why.

        Args:
            kept: runs for which there must still be room when the trial has ended.
        """
        self.refused = self.spent()
        if self.refused is None:
            needed_s = self._needed_s(_Run(key, devices, epochs_left, self._clock()))
            self.refused = self._too_long(needed_s, devices, [KEPT_MARGIN * self.pace.run_s(run) for run in kept])
        return self.refused is None

    def lasts(self, key: PaceKey, epochs_left: int, devices: float, kept: Sequence[PaceRun] = ()) -> bool:
        """As ``admits``, but ``refused`` stays as it is."""
        refused = self.refused
        lasts, self.refused = self.admits(key, epochs_left, devices, kept), refused
        return lasts

    def could_go_on(self, number: int, kept: Sequence[PaceRun] = ()) -> bool:
        """Whether the rest of a running trial would be admitted, as a continuation, if the trial paused now."""
        run = self._runs.pop(number, None)
        if run is None:
            return True
        could = self.lasts(run.key, run.epochs_left, run.devices, kept)
        self._runs[number] = run
        return could

    def admits_any(self) -> bool:
        """Whether even the shortest piece of work fits, one epoch of the fastest key. If not, no trial need be made."""
        self.refused = self.spent() or self._too_long(self.pace.start_s + (self.pace.shortest_s or 0.0), 1)
        return self.refused is None

    def spent(self) -> str | None:
        """Why the search must end now: its end takes the rest of the budget. None: it may go on."""
        if self._clock() + self._to_end_s() >= self._ends_at:
            return TIME_SPENT
        billed = self._billed_now()
        if self._limits.device_s is not None and self._held_s() + billed * self._to_end_s() >= self.limit_s:
            return BUDGET_SPENT
        return None

    def lasts_s(self) -> float:
        """Seconds for which the budget lasts if the devices stay as many as now; infinite without a limit."""
        billed = self._billed_now()
        of_devices = (self.limit_s - self._held_s()) / billed if billed else math.inf
        return max(0.0, min(self._ends_at - self._clock(), of_devices))

    @property
    def limit_s(self) -> float:
        """Device seconds of the whole budget, infinite without one."""
        return math.inf if self._limits.device_s is None else self._limits.device_s

    # Inside

    def _too_long(self, needed_s: float, devices: float, kept: Sequence[float] = ()) -> str | None:
        """Why a trial of ``needed_s`` seconds does not fit beside those that run; None if it does.

        Args:
            kept: seconds of each run that is to follow. If they exceed a limit, MOST_KEPT of it is kept back: without a
                search there is nothing to confirm.
        """
        billed = self._devices()
        # Trials may share a GPU: three thirds are a little less than one.
        slots = self._most_at_once if billed is None else max(1, int(billed / devices + 1e-9))
        after_s = together_s(kept, slots)
        time_s = math.inf if self._limits.time_s is None else self._limits.time_s
        kept_s = after_s if after_s <= time_s else MOST_KEPT * time_s
        if self._clock() + needed_s + kept_s + self._to_end_s() > self._ends_at:
            return NO_ROOM_IN_TIME
        if billed is None:
            running_s = sum(self._needed_s(run) * run.devices for run in self._runs.values())
            billed_s, after_s = running_s + needed_s * devices, sum(kept) * devices
        else:
            billed_s, after_s = billed * (needed_s + self._to_end_s()), billed * after_s
        kept_s = after_s if after_s <= self.limit_s else MOST_KEPT * self.limit_s
        return NO_ROOM_IN_BUDGET if self._held_s() + billed_s + kept_s > self.limit_s else None

    def _needed_s(self, run: _Run) -> float:
        """Seconds that a run still takes; its start alone if no epoch was measured."""
        epochs_s = run.epochs_left * (self.pace.epoch_s(run.key) or 0.0)
        whole_s = epochs_s + (self.pace.start_s if run.starts else 0.0)
        return max(0.0, whole_s - (self._clock() - run.since))

    def _to_end_s(self) -> float:
        """Seconds from the decision to end until the devices are given back."""
        return self._ending_s + (self._checkpoint_s if self._runs else 0.0)

    def _billed_now(self) -> float:
        devices = self._devices()
        return sum(run.devices for run in self._runs.values()) if devices is None else devices


def together_s(runs_s: Sequence[float], slots: int) -> float:
    """Seconds until all runs have ended, if each begins as soon as one of ``slots`` places is free, in their order."""
    free_at = [0.0] * min(slots, len(runs_s))
    for run_s in runs_s:
        heapq.heapreplace(free_at, free_at[0] + run_s)
    return max(free_at, default=0.0)
