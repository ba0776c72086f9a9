"""The learning curves of a study: one for each configuration; in a large study only the most useful ones. And what
curves say together."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import words_of
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.knowledge import Curve
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import devices_of, earlier_of, epoch_records, has_diverged, planned_epochs, was_refused
from bigbatch.tune.runs.study_index import StudyIndex
from bigbatch.tune.runs.tables import epoch_of, epoch_s

MOST_EPOCH_S = 1e9
"""A longer epoch is an error of its record."""
MOST_CURVES = 300
"""Of a study with more curves, the model learns from this many, so that a decision costs the same among 10,000."""
NOTHING = 0.1
"""See ``nothing_learnt``."""


class CurveHistory(StudyIndex):
    """The curves of configurations that have a value, have diverged or are not allowed. A trial that failed for another
    reason is left out.

    Attributes:
        untried: by parameter, the words that no trial had. A trial that failed had its words, too.
        refused: numbers of the trials that could not begin.
        any_ended: whether any run has come to its end, or has ended early by itself: at a target, for example.
    """

    def __init__(self, facts: SearchFacts) -> None:
        self._facts = facts
        super().__init__()

    def __len__(self) -> int:
        return len(self._order)

    def first_number(self, number: int) -> int:
        """The number of the first trial of the run that trial ``number`` continues or retries; else its own."""
        return self._first.get(number, number)

    def curves(self) -> list[Curve]:
        """All curves, in the order in which they began."""
        return [self._curves[first] for _, first in self._order]

    def shown(self, also: Collection[int] = (), most: int = MOST_CURVES) -> list[Curve]:
        """All curves, if there are at most ``most``. Else half of ``most`` are the latest ones, a quarter the best
        finished ones before these, divided among the values of the frontier; the others are spread evenly over the
        earlier ones.

        Args:
            also: curves that are needed too, by their numbers.
        """
        if len(self._order) <= most:
            return self.curves()
        cut = len(self._order) - most // 2
        chosen = set(self._order[cut:])
        for best_first in self._finished.values():
            earlier = (where for _, where in best_first if where < self._order[cut])
            chosen.update(islice(earlier, most // 4 // len(self._finished)))
        room = most - len(chosen)
        chosen.update(self._order[i * cut // room] for i in range(room))
        chosen.update(self._where[first] for first in also if first in self._where)
        return [self._curves[first] for _, first in sorted(chosen)]

    def _forget(self) -> None:
        self.untried = words_of(self._facts)
        self.any_ended = False
        self.refused: set[int] = set()
        self._first: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}
        self._curves: dict[int, Curve] = {}
        self._where: dict[int, tuple[int, int]] = {}
        self._order: list[tuple[int, int]] = []
        """Place of a curve's first trial that says something, and the curve's number."""
        self._finished: dict[object, list[tuple[float, tuple[int, int]]]] = {}
        """By the frontier's value, the finished curves: minus the last gain, and the entry of ``_order``; sorted."""

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        self.any_ended |= trial.state == TrialState.COMPLETE
        if was_refused(trial):
            self.refused.add(trial.number)
        for name, words in self.untried.items():
            if name in trial.params:
                words.discard(trial.params[name])
        earlier = earlier_of(trial)
        first = trial.number if earlier is None else self._first.get(earlier, earlier)
        self._first[trial.number] = first
        members = self._members.setdefault(first, [])
        if not members or members[-1] < place:
            members.append(place)
        if first in self._where:
            where, before = self._where.pop(first), self._curves[first]
            del self._order[bisect_left(self._order, where)]
            if before.finished:
                del (group := self._finished[before.group])[bisect_left(group, (-before.last, where))]
        if telling := [p for p in members if _says_something(trials[p])]:
            curve = _curve_of(first, [trials[p] for p in telling], self._facts)
            if curve.gains or curve.diverged or curve.infeasible:
                self._curves[first], self._where[first] = curve, (telling[0], first)
                insort(self._order, self._where[first])
                if curve.finished:
                    insort(self._finished.setdefault(curve.group, []), (-curve.last, self._where[first]))


def ranks_so_far(curves: Sequence[Curve]) -> dict[int, float]:
    """Number of each curve with values → the rank of its latest value among the values of all curves at the same part
    of their runs, −½ to ½. Values of different epochs do not compare, and runs need not be equally long."""
    ranks = {}
    for curve in curves:
        if curve.gains:
            met = [gain for other in curves if (gain := other.at(curve.part)) is not None]
            below, equal = sum(gain < curve.last for gain in met), sum(gain == curve.last for gain in met)
            ranks[curve.number] = (below + equal / 2) / len(met) - 0.5
    return ranks


def nothing_learnt(curves: Iterable[Curve], objective: Objective) -> float:
    """A run has learnt nothing if after half of its epochs it is no better than this: ``NOTHING`` of the way from
    chance level to the best value. −inf where chance level is not known. Larger is better."""
    best, worst = max((curve.best for curve in curves), default=-math.inf), objective.gain(objective.worst)
    return worst + NOTHING * max(0.0, best - worst) if math.isfinite(worst) else -math.inf


def judged(curves: Sequence[Curve], objective: Objective) -> list[Curve]:
    """The curves, where runs that have learnt nothing count as diverged: neither is a point of a smooth curve."""
    bar = nothing_learnt(curves, objective)
    return [replace(c, diverged=True) if c.gains and c.part >= 0.5 and c.last <= bar else c for c in curves]


def low_and_lost(curves: Iterable[Curve], objective: Objective) -> tuple[float, float]:
    """The value down to which the span of a scale reaches, and what a diverged run is worth. Larger is better.

    If the value of a diverged run is known (about chance level), both are that value. Else, e.g. for a loss, the span
    reaches down to the median of the last values: otherwise a single loss of a thousand, or the high losses of first
    epochs, would hide the differences between good runs. A diverged run is then worth their 10 % quantile. They are of
    the runs that compete and have gone at least half of their way; of all that compete if none has.
    """
    if math.isfinite(worst := objective.gain(objective.worst)):
        return worst, worst
    sound = [c for c in curves if c.competes]
    ends = [c.last for c in sound if c.part >= 0.5] or [c.last for c in sound]
    if not ends:
        return 0.0, 0.0
    low, lost = float(np.median(ends)), float(np.quantile(ends, 0.1))
    return (low if low < max(ends) else min(ends)), lost


def _says_something(trial: FrozenTrial) -> bool:
    return (
        has_diverged(trial)
        or was_refused(trial)
        or (trial.state != TrialState.FAIL and bool(trial.intermediate_values))
    )


def _curve_of(number: int, members: Sequence[FrozenTrial], facts: SearchFacts) -> Curve:
    params, epochs = members[0].params, planned_epochs(members[0]) or facts.max_epochs
    curve = Curve(number, params, {}, epochs, group=params.get(facts.frontier or ""))
    for trial in members:
        curve.diverged |= has_diverged(trial)
        curve.infeasible |= is_infeasible(trial) or was_refused(trial)
        values = trial.intermediate_values.items()
        curve.gains.update((epoch, facts.objective.gain(value)) for epoch, value in values if math.isfinite(value))
    if seconds := [s for trial in members for s in _epoch_seconds(trial, curve.epochs)]:
        curve.epoch_s = statistics.median(seconds)
    return curve


def _epoch_seconds(trial: FrozenTrial, epochs: int) -> list[float]:
    """Device seconds of a trial's epochs, as far as they are known; of the first one only if it is the whole run."""
    devices = devices_of(trial)
    found = [devices * epoch_s(r) for r in epoch_records(trial) if epoch_of(r) > 1 or epochs == 1]
    return [s for s in found if 0 < s < MOST_EPOCH_S]
