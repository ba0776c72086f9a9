"""Spend a search's trials over the values of its frontier, e.g. its global batches, with a strategy's sampler.

A sampler that optimises only the objective would choose the small batches, which are easier, and the large ones would
stay unknown. So the frontier's value of each new trial is chosen here. The sampler proposes the other parameters, as if
that value had been enqueued with the trial.

- Each value gets at least half of an equal share of the trials. These come first, always at the value with the fewest
  trials. So each value is tried early, and the rest is spent with more knowledge.
- The rest goes where one more trial most probably changes the answer. The answer is the largest value whose best trial
  is within the tolerance of the best of all. A trial at a larger value changes it by coming within the tolerance; that
  counts once for each value by which the answer moves up. A trial at a smaller value changes it by being so good that
  the answer is no longer within the tolerance. A trial at the answer may improve it. These two count half, because they
  save no optimizer steps. They count nothing if the metric would have to exceed its limit, e.g. 100 %.

The chance that a trial beats the best of n others of its value is 1 / (n + 1). The chance that it also beats it by a
distance d is taken to fall as exp(−d / s), where s is the usual distance from the middle trial of a value to its best.

All of it is a function of the study: nothing is remembered or drawn. Enqueued and interrupted trials keep their own
value, and count. Running trials count too, so trials that start at the same time get different values.

TPE cannot compare an accuracy at batch 1,024 with one at 128: it would learn that the small batch is good.
So TPE sees each trial without the frontier's parameter, and its rank among the trials of its own value (as a normal
score) in place of its value. It learns what the values share: which optimizer, which multiple of the prior's rate.
``curves`` sees the study as it is, and so do samplers that learn nothing, and the user's own.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.protocol import Proposer, SearchFacts
from bigbatch.tune.models.study_view import MOST_TRIALS, view_of
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.frontier import answer_index
from bigbatch.tune.runs.metrics import ceiling_of
from bigbatch.tune.runs.run import Kind, as_shown, earlier_of, kind_of, ordered_values
from bigbatch.tune.runs.study_index import StudyIndex


class _Tried(NamedTuple):
    """The trials of one value."""

    trials: int
    best: float | None = None
    """Gain of the best finished one, larger is better."""
    distance: float | None = None
    """From the middle finished one to the best; None where fewer than two have finished."""

    @classmethod
    def of(cls, trials: int, gains: Sequence[float]) -> _Tried:
        best = max(gains, default=None)
        return cls(trials, best, best - statistics.median(gains) if best is not None and len(gains) > 1 else None)


def frontier_values(facts: SearchFacts) -> tuple[object, ...]:
    """The values of the frontier's parameter among which to choose, in order.

    Raises ValueError without a frontier, or for a float.
    """
    distribution = next((one.distribution for one in facts.dimensions if one.name == facts.frontier), None)
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
        values, tried = frontier_values(self._facts), self._tried(number)
        places, trials = range(len(values)), self._facts.trials
        if self._facts.open_ended:  # then that is a guess
            trials = max(trials, sum(one.trials for one in tried) + 1)
        least = math.ceil(trials / len(values) / 2)
        # Of equal ones the largest comes first, then the smallest, with which all others are compared.
        fewest = min(places, key=lambda i: (tried[i].trials, i < len(values) - 1, i > 0, -i))
        if tried[fewest].trials < least:
            return values[fewest]
        worth = _worth(self._facts, tried)
        return values[max(places, key=lambda i: (worth[i], i))]

    def _tried(self, number: int) -> list[_Tried]:
        """The trials of each value, without this one and those that another one repeats or continues."""
        counted = [found for n, found in self._found.items() if n != number and n not in self._replaced]
        count, gains = Counter(value for value, _ in counted), dict[object, list[float]]()
        for value, gain in counted:
            if gain is not None:
                gains.setdefault(value, []).append(gain)
        return [_Tried.of(count[value], gains.get(value, [])) for value in frontier_values(self._facts)]

    def _forget(self) -> None:
        self._found: dict[int, tuple[object, float | None]] = {}
        """By number: the trial's value, and the gain of a complete one."""
        self._replaced: set[int | None] = set()

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        self._replaced.add(earlier_of(trial))
        if kind_of(trial) != Kind.CONFIRMATION:
            done = trial.state == TrialState.COMPLETE and trial.values
            gain = self._facts.objective.gain(trial.values[0]) if done else None
            self._found[trial.number] = (_own_value(self._facts, trial), gain)


def _own_value(facts: SearchFacts, trial: FrozenTrial) -> object:
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


_NORMAL = NormalDist()


def at_frontier(inner: Proposer, facts: SearchFacts, *, sees_all: bool) -> Proposer:
    """Proposes as ``inner`` does, at the frontier's value whose turn it is.

    Args:
        sees_all: whether ``inner`` sees the study as it is.
    """
    shares = TrialAllocator(facts)
    return lambda number: FrontierSampler(facts, inner(number), shares, sees_all=sees_all)


class FrontierSampler(PassingSampler):
    """Samples one trial, at the frontier's value whose turn it is."""

    def __init__(self, facts: SearchFacts, inner: BaseSampler, shares: TrialAllocator, *, sees_all: bool) -> None:
        self._facts, self._inner, self._shares, self._sees_all = facts, inner, shares, sees_all
        self._value: object = None
        self._ranked: list[FrozenTrial] | None = None
        self._ranked_of = -1

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The inner sampler, with what it sees, and the trial as if it had been enqueued with the frontier's value."""
        return Asked(self._inner, self._seen(study), self._pinned(study, trial))

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the inner sampler. Nothing is chosen yet."""
        self._inner.before_trial(study, trial)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """The chosen value of the frontier's parameter; any other parameter as the inner sampler."""
        if param_name != self._facts.frontier:
            return super().sample_independent(study, trial, param_name, param_distribution)
        self._pinned(study, trial)
        return self._value

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """As the inner sampler. Nothing is chosen any more."""
        self._inner.after_trial(study, trial, state, values)

    def _pinned(self, study: Study, trial: FrozenTrial) -> FrozenTrial:
        if self._value is None:
            chosen = _own_value(self._facts, trial)
            self._value = self._shares.next_value(study, trial.number) if chosen is None else chosen
        # Optuna takes a value from here without asking the sampler for it.
        fixed = {**trial.system_attrs.get("fixed_params", {}), self._facts.frontier: self._value}
        return as_shown(trial, system_attrs={**trial.system_attrs, "fixed_params": fixed})

    def _seen(self, study: Study) -> Study:
        return study if self._sees_all else view_of(study, self._rank)

    def _rank(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        if self._ranked is None or self._ranked_of != len(trials):  # the same for the whole proposal
            self._ranked, self._ranked_of = among_peers(self._facts, trials[-MOST_TRIALS:]), len(trials)
        return self._ranked


def among_peers(facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials without the frontier's parameter, each value replaced by its normal score among its peers.

    A trial's last value is ranked among the values that its peers had in the same epoch. The best of a value thus
    compares with the best of any other; a trial without peers is in the middle. One that violates a constraint has no
    rank, and is shown without values. The given trials are not changed.
    """
    at_step: dict[tuple[object, int | None, int], list[float]] = {}
    for trial in trials:
        if is_infeasible(trial):
            continue
        value = trial.params.get(facts.frontier) if facts.frontier else None
        for place, final in enumerate(trial.values or () if trial.state == TrialState.COMPLETE else ()):
            at_step.setdefault((value, None, place), []).append(final)
        for step, reported in trial.intermediate_values.items():
            at_step.setdefault((value, step, 0), []).append(reported)
    for met in at_step.values():
        met.sort()
    return [_as_ranked(facts, trial, at_step) for trial in trials]


def _as_ranked(
    facts: SearchFacts, trial: FrozenTrial, at_step: dict[tuple[object, int | None, int], list[float]]
) -> FrozenTrial:
    name = facts.frontier or ""
    if name not in trial.params:
        return trial
    value = trial.params[name]
    params = {other: one for other, one in trial.params.items() if other != name}
    distributions = {other: one for other, one in trial.distributions.items() if other != name}
    shown = as_shown(trial, params=params, distributions=distributions)
    if is_infeasible(trial):
        shown.intermediate_values = {}
    elif trial.intermediate_values:
        last = max(trial.intermediate_values)
        shown.intermediate_values = {last: _score(trial.intermediate_values[last], at_step[value, last, 0])}
    if trial.state == TrialState.COMPLETE and trial.values:
        shown.values = [_score(final, at_step[value, None, place]) for place, final in enumerate(trial.values)]
    return shown


def _score(value: float, sorted_values: Sequence[float]) -> float:
    """The normal score of a value's rank: 0 in the middle, larger for larger values."""
    middle = (bisect_left(sorted_values, value) + bisect_right(sorted_values, value)) / 2
    return _NORMAL.inv_cdf(middle / len(sorted_values))
