"""What a person is told of a trial: its value by what did not choose it, as far as there is such a thing.

The value for which the best of many trials was chosen is too good by luck. Held-out examples have no part in that
luck. Fresh seeds have none in the luck of the seed; but on the examples that chose, what fits these by luck stays.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.tune.runs import learned
from bigbatch.tune.runs.certainty import (
    ERROR_RATE,
    clopper_pearson,
    mean_interval,
    mean_over_seeds_interval,
    right_answers,
)
from bigbatch.tune.runs.confirmed import Confirmed, held_out
from bigbatch.tune.runs.learned import CHOSEN, FRESH_SEEDS, HELD_OUT
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import AnyTrial


@dataclass(frozen=True)
class Examples:
    """The validation examples of a study."""

    choosing: int = 0
    """Those by which trials are chosen; 0: not known."""
    held_out: int = 0
    """Those that report and do not choose."""
    noun: str = "images"
    """What they are: ``images``, or ``examples`` where the data are none."""


@dataclass(frozen=True)
class ReportedValue:
    """What a person is told of a trial: its value by what did not choose it, as far as there is such a thing."""

    value: float
    low: float | None
    high: float | None
    """Its 95 % interval; None where nothing gives one."""
    by: str
    """``HELD_OUT``, ``FRESH_SEEDS`` or ``CHOSEN``."""
    examples: int
    """On which it was measured; 0: not known."""
    values: Sequence[float]
    """Of which it is the mean: one for each fresh seed, or that of the trial itself."""


def on_held_out(
    trial: AnyTrial, confirmed: Confirmed | None, examples: Examples, objective: Objective
) -> ReportedValue | None:
    """What the examples that made no choice say of the trial; None without them."""
    values = confirmed.holdout if confirmed else (held_out(trial, objective),)
    if not values or not all(map(math.isfinite, values)):
        return None
    # 1: these examples have chosen nothing.
    low, high = _interval(values, examples.held_out, 1, objective)
    return ReportedValue(statistics.fmean(values), low, high, HELD_OUT, examples.held_out, values)


def by_choice(
    value: float, confirmed: Confirmed | None, among: int, examples: Examples, objective: Objective
) -> ReportedValue:
    """What the examples that chose say of the best of ``among`` trials, or of its fresh seeds."""
    values = confirmed.values if confirmed else (value,)
    low, high = _interval(values, examples.choosing, among, objective)
    return ReportedValue(value, low, high, FRESH_SEEDS if confirmed else CHOSEN, examples.choosing, values)


def _interval(
    values: Sequence[float], examples: int, chosen_from: int, objective: Objective
) -> tuple[float | None, float | None]:
    """Interval of the mean of ``values``, the best of ``chosen_from``; see the top of this file."""
    rate = ERROR_RATE / chosen_from
    if not objective.metric.is_proportion:
        return mean_interval(values, rate) or (None, None)
    if not examples or not all(map(math.isfinite, values)):
        return None, None
    if len(values) > 1:
        return mean_over_seeds_interval(values, examples, rate)
    return clopper_pearson(right_answers(values[0], examples), examples, rate)


def uncertainty(value: ReportedValue, curve: Sequence[float], objective: Objective) -> float:
    """How far a value may be from the truth on the side where it is worse."""
    if value.low is not None and value.high is not None:
        return value.value - value.low if objective.direction == "maximize" else value.high - value.value
    return learned.worst_setback(curve, objective)


def difference(one: ReportedValue, other: ReportedValue, objective: Objective) -> tuple[float, float, float] | None:
    """By how much ``other`` is better, and how much more and how much less it may be at 95 % (Newcombe 1998, method
    10); None without intervals."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    up, down = (1, -1) if objective.direction == "maximize" else (-1, 1)
    reach = {up: (other.high - other.value, one.value - one.low), down: (other.value - other.low, one.high - one.value)}
    gap = objective.gain(other.value) - objective.gain(one.value)
    return gap, math.hypot(*reach[1]), math.hypot(*reach[-1])
