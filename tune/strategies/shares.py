"""Spend a search's trials over the values of its frontier, e.g. its global batches.

A sampler that optimises the objective alone walks to the small batches, which are the easier ones, and says nothing
about the large ones. So the value of each new trial is chosen here, and the sampler proposes the other parameters.

- Each value gets at least half of an equal share of the trials. These come first, the value with the fewest trials
  next. So each value is tried early, and the rest is spent with the most knowledge.
- The rest goes where one more trial most probably changes the answer. The answer is the largest value whose best trial
  is within the tolerance of the best of all. A larger value changes it if a trial there comes within the tolerance;
  that counts for as many steps as the answer would move up. A smaller value changes it if a trial there is so good that
  the answer falls behind, and a trial at the answer itself may improve it. Both count half: they save no steps.

The chance that a trial beats the best of n others of its value is 1 / (n + 1). The chance that it also beats it by a
distance d is taken to fall as exp(−d / s), where s is the usual distance from the middle trial of a value to its best.

All of it is a function of the study: nothing is remembered or drawn. Enqueued and interrupted trials keep their own
value, and count. Running trials count too, so trials that start at the same time get different values.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.protocol import SearchFacts
from bigbatch.tune.study.frontier import answer_index, counted_trials, ordered_values


@dataclass(frozen=True)
class _Tried:
    """The trials of one value."""

    count: int
    gains: tuple[float, ...]
    """Of the finished ones, larger is better; the best first."""

    @property
    def best(self) -> float | None:
        return self.gains[0] if self.gains else None


def frontier_values(facts: SearchFacts) -> tuple[object, ...]:
    """The values of the frontier's parameter among which to choose, in order.

    Raises ValueError without a frontier, or for a float.
    """
    distribution = facts.dimension(facts.frontier).distribution if facts.frontier else None
    if isinstance(distribution, CategoricalDistribution):
        return ordered_values([value for value in distribution.choices if value != facts.kept_for_later])
    if isinstance(distribution, IntDistribution):
        numbers = range(distribution.low, distribution.high + 1, distribution.step)
        return tuple(number for number in numbers if number != facts.kept_for_later)
    raise ValueError(f"no choice and no whole number: {facts.frontier!r}")


def next_value(facts: SearchFacts, trials: Sequence[FrozenTrial], number: int) -> object:
    """The frontier's value for the new trial ``number``, given all ``trials`` of the study."""
    values = frontier_values(facts)
    tried = _tried(facts, values, [t for t in trials if t.number != number])
    least = math.ceil(facts.trials / len(values) / 2)
    places = range(len(values))
    # Of equal ones the largest comes first, then the smallest, with which all others are compared.
    fewest = min(places, key=lambda i: (tried[i].count, i < len(values) - 1, i > 0, -i))
    if tried[fewest].count < least:
        return values[fewest]
    worth = _worth(facts, tried)
    return values[max(places, key=lambda i: (worth[i], i))]


def _tried(facts: SearchFacts, values: Sequence[object], trials: Sequence[FrozenTrial]) -> list[_Tried]:
    found: dict[object, list[FrozenTrial]] = {value: [] for value in values}
    for trial in counted_trials(trials):
        value = own_value(facts, trial)
        if value in found:
            found[value].append(trial)
    return [_Tried(len(found[value]), _gains(facts, found[value])) for value in values]


def own_value(facts: SearchFacts, trial: FrozenTrial) -> object:
    """The frontier's value that a trial has, or that was enqueued with it; None if it has none yet."""
    fixed = trial.system_attrs.get("fixed_params")
    enqueued = fixed.get(facts.frontier) if isinstance(fixed, Mapping) else None
    return trial.params.get(facts.frontier, enqueued) if facts.frontier else None


def _gains(facts: SearchFacts, trials: Sequence[FrozenTrial]) -> tuple[float, ...]:
    done = [facts.objective.gain(t.values[0]) for t in trials if t.state == TrialState.COMPLETE and t.values]
    return tuple(sorted(done, reverse=True))


def _worth(facts: SearchFacts, tried: Sequence[_Tried]) -> list[float]:
    """For each value, the chance that one more trial there changes the answer, times how much that counts."""
    bests = [one.best for one in tried]
    known = [best for best in bests if best is not None]
    if not known:
        return [1 / (one.count + 1) for one in tried]
    answer = answer_index(bests, facts.tolerance)
    line = max(known) - facts.tolerance  # the answer and all above it are at least this good
    threat = (bests[answer] or 0.0) + facts.tolerance  # with a trial better than this, the answer falls behind
    scale = max(_usual_distance(tried), facts.tolerance, 1e-12)
    worth = []
    for place, (one, best) in enumerate(zip(tried, bests, strict=True)):
        bar = line if place > answer else threat
        distance = 0.0 if best is None or place == answer else max(0.0, bar - best)
        weight = place - answer if place > answer else 0.5
        worth.append(weight * math.exp(-distance / scale) / (one.count + 1))
    return worth


def _usual_distance(tried: Sequence[_Tried]) -> float:
    """From the middle finished trial of a value to its best: the median over the values; 0 where none has two."""
    distances = [one.gains[0] - statistics.median(one.gains) for one in tried if len(one.gains) > 1]
    return statistics.median(distances) if distances else 0.0
