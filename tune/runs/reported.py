"""The value of a trial that a person is shown: measured by what did not choose the trial, if there is such a thing.

The value for which the best of many trials was chosen is too good by luck. The value on held-out examples is free
of that luck. The mean over fresh seeds is free of the luck with the seed, but not of the luck with the examples that
chose. ``confirmation.py`` says which trials are trained again with fresh seeds; ``Confirmed`` holds the results.

The more trials there are, the larger is the part of luck in the value of the best one. So its Clopper-Pearson interval
has an error rate of 5 % divided by the number of trials, and holds at 95 % however the best was picked. The effect of
another seed is not in it, because a study has one seed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optuna.trial import TrialState

from bigbatch.tune.runs import learned
from bigbatch.tune.runs.learned import CHOSEN, FRESH_SEEDS, HELD_OUT
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import (
    SEED_ATTR,
    AnyTrial,
    Kind,
    confirmed_by,
    epoch_records,
    has_diverged,
    of_kind,
    retried_trials,
)


@dataclass(frozen=True)
class Confirmed:
    """The results of one trial with fresh seeds. Values are those of the objective."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """By seed. A run that diverged has the objective's worst value, which may be no number."""
    holdout: tuple[float, ...]
    """The same on the validation examples that made no choice, by seed; empty without them."""
    diverged: int = 0
    """How many of the runs diverged."""

    @property
    def mean(self) -> float:
        """The mean over the seeds, by which trials are compared. NaN if a run diverged and has no known value."""
        return statistics.fmean(self.values)


def confirmations(trials: Sequence[AnyTrial]) -> list[AnyTrial]:
    """The runs that confirm a trial with another seed, without those that ``--retry-failed`` has repeated."""
    again = retried_trials(trials)
    return [t for t in of_kind(trials, Kind.CONFIRMATION) if t.number not in again]


def failed_confirmations(trials: Sequence[AnyTrial]) -> Counter[int]:
    """Number of a trial → how many of its runs with other seeds ended without a result."""
    failed = (t for t in confirmations(trials) if t.state == TrialState.FAIL and not has_diverged(t))
    return Counter(confirmed_by(t) or 0 for t in failed)


def confirmed_trials(trials: Sequence[AnyTrial], objective: Objective) -> dict[int, Confirmed]:
    """Number of a confirmed trial → what came out. Runs that have not ended, or failed otherwise, are left out."""
    runs: dict[int, list[AnyTrial]] = {}
    for trial in confirmations(trials):
        if _has_value(trial) or has_diverged(trial):
            runs.setdefault(confirmed_by(trial) or 0, []).append(trial)
    return {number: _confirmed(each, objective) for number, each in runs.items()}


def _has_value(trial: AnyTrial) -> bool:
    return trial.state == TrialState.COMPLETE and bool(trial.values)


def _confirmed(runs: Sequence[AnyTrial], objective: Objective) -> Confirmed:
    runs = sorted(runs, key=lambda run: int(run.user_attrs.get(SEED_ATTR, 0)))
    held = [held_out(run, objective) if _has_value(run) else math.nan for run in runs]
    return Confirmed(
        seeds=tuple(int(run.user_attrs.get(SEED_ATTR, 0)) for run in runs),
        values=tuple(run.values[0] if _has_value(run) else objective.worst for run in runs),
        # A diverged run has no value on the holdout: it is at chance there too.
        holdout=() if all(map(math.isnan, held)) else tuple(objective.worst if math.isnan(v) else v for v in held),
        diverged=sum(map(has_diverged, runs)),
    )


def held_out(trial: AnyTrial, objective: Objective) -> float:
    """What the trial's last epoch is worth on the examples that made no choice; not a number without them."""
    records = epoch_records(trial)
    return objective.held_out(records[-1]) if records else math.nan


ERROR_RATE = 0.05


def right_answers(value: float, images: int) -> int:
    """The number of right answers among ``images``, for an accuracy of ``value``."""
    # An accuracy is a count divided by the images, and the float may miss the whole number.
    return min(images, max(0, round(value * images)))


def clopper_pearson(count: int, images: int, error_rate: float) -> tuple[float, float]:
    """The exact interval of a proportion (Clopper and Pearson 1934). It is wrong in at most ``error_rate`` of cases."""
    from scipy.stats import beta

    # With no answer right, or none wrong, that limit's beta distribution does not exist.
    low = float(beta.ppf(error_rate / 2, count, images - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - error_rate / 2, count + 1, images - count)) if count < images else 1.0
    return low, high


def mean_over_seeds_interval(values: Sequence[float], images: int, error_rate: float) -> tuple[float, float]:
    """An interval of the mean accuracy over all seeds and all images, from runs with several seeds on the same images.

    Two sources of error add up. The images: Clopper-Pearson of the mean, as if all runs failed on the same images. They
    mostly do, so the mean of several runs is hardly more certain than one run; what they do not share is counted again
    below, which makes the interval a little too wide. The seeds: Student's t of the mean. Both are combined as the
    method of variance estimates recovery does (Zou and Donner 2008), which keeps the limits within 0 and 1 where all
    answers are right.

    With one value the interval does not include the effect of the seed.

    Args:
        values: the accuracies (0 to 1) of runs that differ in their seeds alone, at least one.
        images: number of images, the same ones for all runs.
        error_rate: the interval is wrong in at most about this part of cases.
    """
    mean = statistics.fmean(values)
    low, high = clopper_pearson(right_answers(mean, images), images, error_rate)
    seeds = mean_interval(values, error_rate)
    spread = seeds[1] - mean if seeds else 0.0
    return max(0.0, mean - math.hypot(mean - low, spread)), min(1.0, mean + math.hypot(high - mean, spread))


def mean_interval(values: Sequence[float], error_rate: float) -> tuple[float, float] | None:
    """Student's t interval of the mean of normal values; None for fewer than two, or if one is no number.

    Args:
        error_rate: the interval is wrong in this part of cases.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from scipy.stats import t  # slow to import

    mean = statistics.fmean(values)
    spread = float(t.ppf(1 - error_rate / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - spread, mean + spread


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
    """The value of a trial that a person is shown: measured by what did not choose it, if there is such a thing."""

    value: float
    low: float | None
    high: float | None
    """Its 95 % interval; None where nothing gives one."""
    by: str
    """``HELD_OUT``, ``FRESH_SEEDS`` or ``CHOSEN``."""
    examples: int
    """How many it was measured on; 0: not known."""
    values: Sequence[float]
    """The values of which it is the mean: one for each fresh seed, or that of the trial itself."""


def on_held_out(
    trial: AnyTrial, confirmed: Confirmed | None, examples: Examples, objective: Objective
) -> ReportedValue | None:
    """The trial's value on the examples that made no choice; None without them."""
    values = confirmed.holdout if confirmed else (held_out(trial, objective),)
    if not values or not all(map(math.isfinite, values)):
        return None
    # 1: these examples have chosen nothing.
    low, high = _interval(values, examples.held_out, 1, objective)
    return ReportedValue(statistics.fmean(values), low, high, HELD_OUT, examples.held_out, values)


def by_choice(
    value: float, confirmed: Confirmed | None, among: int, examples: Examples, objective: Objective
) -> ReportedValue:
    """The value of the best of ``among`` trials, or of its fresh seeds, on the examples that chose."""
    values = confirmed.values if confirmed else (value,)
    low, high = _interval(values, examples.choosing, among, objective)
    return ReportedValue(value, low, high, FRESH_SEEDS if confirmed else CHOSEN, examples.choosing, values)


def as_of_one_run(reported: ReportedValue, objective: Objective) -> ReportedValue:
    """With the interval that the value would have if a single run had reached it: without the spread of the seeds."""
    low, high = _interval((reported.value,), reported.examples, 1, objective)
    return replace(reported, low=low, high=high)


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
