"""Extrapolate what more trials would probably bring, from the values of those that have ended.

The trials count as independent draws of one distribution. Two things follow.

*Whether* the best of n draws is beaten by k more does not depend on the distribution: the best of all n + k is equally
likely to be each of them, so it is a new one with probability k / (n + k).

*By how much* depends on the distribution's upper tail. Let M(m) be the expected best of m draws. Up to m = n it is
known without bias: the mean over all subsets of m of the n values. By the theorem of Fisher, Tippett and Gnedenko a
doubling of a large m adds to M a constant times m**xi, where xi is the tail's index. So each doubling adds r times what
the doubling before added, with r = 2**xi. Here r is taken from the last two known doublings, n/4 to n/2 and n/2 to n,
and kept at 1 or below: an accuracy has an upper end, so gains do not grow. j doublings then add
g * r * (1 - r**j) / (1 - r) with g = M(n) - M(n/2) and j = log2((n + k) / n).

On uniform, normal, exponential and beta draws this is right on average (0.9 to 1.4 times the true gain for n from 12 to
64). A single study's estimate lies within a factor of three of the truth in about 7 of 10 cases, so it is printed with
that range. A strategy that learns may do better than independent draws, and one that has found the optimum worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import has_diverged, replaced_trials, search_trials

LEAST_DRAWS = 8
"""With fewer ended trials nothing is extrapolated."""
FACTOR = 3.0
"""The range is the estimate divided and multiplied by this."""
USUAL_HOURS = 10.0
"""The forecast is for so many more hours; after a budget of less than an hour, for as much again."""


@dataclass(frozen=True)
class Forecast:
    """What k more draws would probably add to the best of n."""

    draws: int
    more: int
    """k"""
    chance: float
    """The probability that one of them is better than the best so far."""
    gain: float
    """By how much the best improves on average, also counting that it may not improve. In the objective's unit."""
    low: float
    high: float


def expected_best(values: Sequence[float], draws: float) -> float:
    """The mean of the best of ``draws`` values, over all subsets of that size. Between whole numbers it is linear.

    Args:
        draws: from 1 to the number of values.
    """
    whole = math.floor(draws)
    low = _best_of_subsets(sorted(values, reverse=True), whole)
    if whole == draws:
        return low
    return low + (draws - whole) * (_best_of_subsets(sorted(values, reverse=True), whole + 1) - low)


def _best_of_subsets(falling: Sequence[float], size: int) -> float:
    """``falling``: the values, the largest first. The i-th is the best of a subset if the others are below it."""
    below, weight, total = len(falling) - 1, size / len(falling), 0.0
    for value in falling:
        total += weight * value
        if below < size:
            break
        weight *= (below - size + 1) / below
        below -= 1
    return total


def forecast(values: Sequence[float], more: int, room: float = math.inf) -> Forecast | None:
    """What ``more`` draws would add to the best of ``values``, larger being better. None with too few values.

    Args:
        room: the largest possible gain, e.g. 1 − best for an accuracy.
    """
    n = len(values)
    if n < LEAST_DRAWS or more < 1:
        return None
    known = [expected_best(values, part) for part in (n / 4, n / 2, n)]
    before, last = known[1] - known[0], known[2] - known[1]
    ratio = min(1.0, last / before) if before > 0 else 1.0
    doublings = math.log2((n + more) / n)
    # At a ratio of 1 the formula of the sum divides by zero.
    summed = doublings if ratio > 1 - 1e-9 else ratio * (1 - ratio**doublings) / (1 - ratio)
    gain = min(room, last * summed)
    return Forecast(n, more, more / (n + more), gain, gain / FACTOR, min(room, gain * FACTOR))


def draws_of(trials: Sequence[FrozenTrial], objective: Objective) -> list[float]:
    """The values of a study's configurations with the sign that makes larger better.

    Of several objectives the first counts. A stopped trial has its last value, a diverged one the objective's worst. A
    configuration that was continued counts once. A trial that violates a constraint says nothing: its value may be one
    that no allowed configuration has. Trials that failed for another reason and confirmations say nothing either.
    """
    replaced = replaced_trials(trials)
    found = []
    for trial in search_trials(trials):
        if trial.number in replaced or is_infeasible(trial):
            continue
        if has_diverged(trial):
            found.append(objective.worst)
        elif trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            last = trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else math.nan
            found.append(trial.values[0] if trial.values else last)
    return [objective.gain(value) for value in found if math.isfinite(value)]


def more_hours(budget_hours: float | None) -> float:
    """For how many more hours a forecast is made: ten, or as much again after a budget of less than an hour."""
    return budget_hours if budget_hours is not None and budget_hours < 1 else USUAL_HOURS


def forecast_words(
    trials: Sequence[FrozenTrial], objective: Objective, used_hours: float, hours: float, unit: str
) -> str:
    """A sentence or two about what ``hours`` more would probably bring; empty if nothing can be said.

    Args:
        used_hours: what the study has used so far, in the same unit.
        unit: e.g. ``GPU hours``.
    """
    values = draws_of(trials, objective)
    amount = f"{hours:.3g} more {unit}"
    if used_hours <= 0 or not values:
        return ""
    more = round(len(values) * hours / used_hours)
    is_accuracy = objective.metric.is_proportion
    found = forecast(values, more, 1 - max(values) if is_accuracy else math.inf)
    if found is None:
        few = f"{len(values)} ended trials" if len(values) < LEAST_DRAWS else "less than one trial"
        return f"What {amount} would bring cannot be said from {few}."

    def words(gain: float) -> str:
        return f"{100 * gain:.2g}" if is_accuracy else f"{gain:.2g}"

    points = " points" if is_accuracy else ""
    return (
        f"{amount} are about {more} more trial{'s' * (more != 1)}. If they come out as the {found.draws} so far, the "
        f"best improves with a chance of {100 * found.chance:.0f} %, on average by {words(found.gain)}{points} "
        f"(the truth is probably between {words(found.low)} and {words(found.high)}; a strategy that learns may do "
        "better)."
    )
