"""Spend a search's trials over the values of its frontier, e.g. its global batches.

A sampler that optimises the objective alone walks to the small batches, which are the easier ones, and says nothing
about the large ones. So the value of each new trial is chosen here, and the sampler proposes the other parameters.

- Each value gets at least half of an equal share of the trials. These come first, the value with the fewest trials
  next. So each value is tried early, and the rest is spent with the most knowledge.
- The rest goes where one more trial most probably changes the answer. The answer is the largest value whose best trial
  is within the tolerance of the best of all. A larger value changes it if a trial there comes within the tolerance;
  that counts for as many steps as the answer would move up. A smaller value changes it if a trial there is so good that
  the answer falls behind, and a trial at the answer itself may improve it. Both count half: they save no steps. Neither
  can happen beyond what the metric can reach, e.g. 100 %.

The chance that a trial beats the best of n others of its value is 1 / (n + 1). The chance that it also beats it by a
distance d is taken to fall as exp(−d / s), where s is the usual distance from the middle trial of a value to its best.

All of it is a function of the study: nothing is remembered or drawn. Enqueued and interrupted trials keep their own
value, and count. Running trials count too, so trials that start at the same time get different values.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.frontier import answer_index
from bigbatch.tune.runs.metrics import ceiling_of
from bigbatch.tune.runs.run import Kind, earlier_of, kind_of, ordered_values
from bigbatch.tune.runs.study_index import StudyIndex


class _Tried(NamedTuple):
    """The trials of one value."""

    trials: int
    best: float | None = None
    """Gain of the best finished one, larger is better."""
    distance: float | None = None
    """From the middle finished one to the best; None where fewer than two have finished."""


def frontier_values(facts: SearchFacts) -> tuple[object, ...]:
    """The values of the frontier's parameter among which to choose, in order.

    Raises ValueError without a frontier, or for a float.
    """
    distribution = facts.dimension(facts.frontier).distribution if facts.frontier else None
    if isinstance(distribution, CategoricalDistribution):
        return ordered_values(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return tuple(range(distribution.low, distribution.high + 1, distribution.step))
    raise ValueError(f"no choice and no whole number: {facts.frontier!r}")


class TrialAllocator(StudyIndex):
    """Chooses the frontier's value of each new trial, by what was tried of each."""

    def __init__(self, facts: SearchFacts) -> None:
        self._facts = facts
        super().__init__()

    def next_value(self, study: Study, number: int) -> object:
        """The frontier's value for the new trial ``number``."""
        self.update(study)
        values = frontier_values(self._facts)
        places = range(len(values))
        tried = [self._tried(value, number) for value in values]
        trials = self._facts.trials
        if self._facts.open_ended:  # then that is a guess
            trials = max(trials, sum(one.trials for one in tried) + 1)
        least = math.ceil(trials / len(values) / 2)
        # Of equal ones the largest comes first, then the smallest, with which all others are compared.
        fewest = min(places, key=lambda i: (tried[i].trials, i < len(values) - 1, i > 0, -i))
        if tried[fewest].trials < least:
            return values[fewest]
        worth = _worth(self._facts, tried)
        return values[max(places, key=lambda i: (worth[i], i))]

    def _tried(self, value: object, without: int) -> _Tried:
        """The trials of a value, but for one that runs."""
        gains = self._gains.get(value, [])
        count = self._count[value] - (self._counted.get(without, _NONE) == value)
        if len(gains) < 2:
            return _Tried(count, gains[0] if gains else None)
        half = len(gains) // 2
        middle = gains[half] if len(gains) % 2 else (gains[half - 1] + gains[half]) / 2
        return _Tried(count, gains[-1], gains[-1] - middle)

    def _forget(self) -> None:
        self._counted: dict[int, object] = {}
        self._count: Counter[object] = Counter()
        self._gains: dict[object, list[float]] = {}
        self._replaced: set[int] = set()

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        if (earlier := earlier_of(trial)) is not None:
            self._replaced.add(earlier)
            self._uncount(earlier)
        self._uncount(trial.number)
        if trial.number in self._replaced or kind_of(trial) == Kind.CONFIRMATION:
            return
        value = own_value(self._facts, trial)
        self._counted[trial.number] = value
        self._count[value] += 1
        if trial.state == TrialState.COMPLETE and trial.values:
            insort(self._gains.setdefault(value, []), self._facts.objective.gain(trial.values[0]))

    def _uncount(self, number: int) -> None:
        """Count no trial that is repeated or continued: none of them is complete."""
        if number in self._counted:
            self._count[self._counted.pop(number)] -= 1


_NONE = object()


def own_value(facts: SearchFacts, trial: FrozenTrial) -> object:
    """The frontier's value that a trial has, or that was enqueued with it; None if it has none yet."""
    fixed = trial.system_attrs.get("fixed_params")
    enqueued = fixed.get(facts.frontier) if isinstance(fixed, Mapping) else None
    return trial.params.get(facts.frontier, enqueued) if facts.frontier else None


def _worth(facts: SearchFacts, tried: Sequence[_Tried]) -> list[float]:
    """For each value, the chance that one more trial there changes the answer, times how much that counts."""
    bests = [one.best for one in tried]
    known = [best for best in bests if best is not None]
    if not known:
        return [1 / (one.trials + 1) for one in tried]
    answer = answer_index(bests, facts.tolerance)
    tolerance = facts.tolerance.allowance(max(known))
    line = max(known) - tolerance  # the answer and all above it are at least this good
    threat = (bests[answer] or 0.0) + tolerance  # with a trial better than this, the answer falls behind
    # Where no two values differ, any scale is as good.
    scale = max(_usual_distance(tried), tolerance) or 1.0
    ceiling = ceiling_of(facts.objective.name) if facts.objective.direction == "maximize" else math.inf
    worth = []
    for place, (one, best) in enumerate(zip(tried, bests, strict=True)):
        if place > answer:
            bar, weight = line, float(place - answer)
        else:
            bar = threat if place < answer else bests[answer] or 0.0
            weight = 0.5 if bar < ceiling else 0.0
        distance = 0.0 if best is None or place == answer else max(0.0, bar - best)
        worth.append(weight * math.exp(-distance / scale) / (one.trials + 1))
    # Where no trial can change the answer, the values get equally many.
    return worth if any(worth) else [1 / (one.trials + 1) for one in tried]


def _usual_distance(tried: Sequence[_Tried]) -> float:
    """From the middle finished trial of a value to its best: the median over the values; 0 where none has two."""
    distances = [one.distance for one in tried if one.distance is not None]
    return statistics.median(distances) if distances else 0.0
