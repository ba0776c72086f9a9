"""The frontier of a study: for each value of one parameter, usually the global batch, the best configuration.

The answer of a study is the largest value whose best trial is not worse than the best of all by more than a tolerance.
All of it is computed from the trials and from study.json, so it can be made again at any time.

*Intervals* hold at 95 % and allow for the choice: the best of k finished trials of a value has a Clopper-Pearson
interval at a level of 5 % / k (see certainty.py). Where a trial was confirmed, i.e. trained again with other seeds, the
mean of these fresh runs counts instead, the interval also has the t-interval of the seeds, and the answer is chosen
among confirmed values alone. A trial that diverged with one of these seeds counts only where nothing else is left.
*How much worse* a value may be than another follows from both intervals by Newcombe's rule for a difference (1998,
method 10). It takes the two as independent. They share their images, which makes the difference more certain than the
rule says.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.config.earlier_keys import migrated
from bigbatch.tune.study.certainty import ERROR_RATE, clopper_pearson, mean_over_seeds_interval, right_answers
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.retry import given_trials, retried_trials
from bigbatch.tune.study.tables import epoch_records, epoch_s
from bigbatch.tune.study.trial_facts import (
    CONFIRMS_ATTR,
    configuration,
    continued_trials,
    has_diverged,
    planned_epochs,
    promoted_trials,
)

POINT = 0.01
"""A point of the tolerance, in the objective's unit."""
_SLACK = 1e-9
"""For sums of decimal fractions: 0.997 − 0.992 is a little more than 0.005."""


@dataclass(frozen=True)
class FrontierFacts:
    """What study.json says about the frontier."""

    name: str
    """The parameter."""
    values: tuple[object, ...]
    """In order, the answer is the last one that holds."""
    tolerance: float
    """In points."""
    images: int
    """Validation images."""
    workers: int
    """Devices of a trial."""
    objective: Objective = Objective()

    @property
    def word(self) -> str:
        """The parameter as people call it: ``batch``."""
        return "batch" if "batch" in self.name else self.name

    @property
    def tolerance_in_words(self) -> str:
        """``0.5 points`` of an accuracy; of another metric what that is in its own unit, ``0.005``."""
        points = f"{self.tolerance:g} points"
        return points if self.objective.name.endswith("_top1") else f"{self.tolerance * POINT:g}"


@dataclass(frozen=True)
class BestOfValue:
    """The best trial of one value, and what a full run of its configuration costs on these devices."""

    trial: int
    objective: float
    """Of its last epoch; the mean over the seeds where it was confirmed."""
    low: float | None
    high: float | None
    """Interval of the objective; None where it is no part of right answers."""
    seeds: int
    """Fresh seeds with which the trial was confirmed; 0: none."""
    seeds_diverged: int
    """With how many of them it diverged. Such a trial is the best only where the value has no other."""
    epochs: int
    optimizer_steps: int | None
    images_per_s: float | None
    """Median over the epochs, all workers together."""
    epoch_s: float | None
    """Median over the epochs, with validation and checkpoints."""
    gpu_hours: float | None
    """Epochs × median epoch × workers. Without GPUs these are worker hours."""
    noise_scale: float | None
    """The gradient noise scale, in images: median over the epochs in which it was measured."""
    holdout: float | None
    """Top-1 on the images that did not choose, after the last epoch of the trial itself; None without such images."""
    config: Mapping[str, object]


@dataclass(frozen=True)
class FrontierRow:
    """One value of the frontier."""

    value: object
    tried: int
    """Configurations, without repeated and continued ones."""
    finished: int
    diverged: int
    best: BestOfValue | None
    """None before a trial has finished."""
    worse_by: float | None = None
    """Than the best of all values, in the objective's unit; 0 for the best one."""
    worse_at_most: float | None = None
    """Than any other value, at 95 %; None without intervals."""


@dataclass(frozen=True)
class Frontier:
    """All values, and which one is the answer."""

    facts: FrontierFacts
    rows: tuple[FrontierRow, ...]
    answer: int
    """Place of the largest value that is within the tolerance of the best."""

    @property
    def answer_row(self) -> FrontierRow:
        """The answer's row."""
        return self.rows[self.answer]

    @property
    def answer_best(self) -> BestOfValue:
        """The answer's best trial."""
        found = self.answer_row.best
        assert found is not None, "only a value with a finished trial is the answer"
        return found

    @property
    def reference(self) -> FrontierRow:
        """The row with the best objective."""
        return min(_comparable(self.rows), key=lambda row: row.worse_by or 0.0)

    @property
    def is_certain(self) -> bool | None:
        """Whether the interval allows the claim that the answer is within the tolerance. None without an interval."""
        if len([row for row in self.rows if row.best]) < 2:
            return None
        at_most = self.answer_row.worse_at_most
        return None if at_most is None else at_most <= self.facts.tolerance * POINT + _SLACK


def frontier_facts(description: Mapping[str, object], objective: Objective = Objective()) -> FrontierFacts | None:  # noqa: B008
    """The frontier that study.json declares; None if it declares none, as earlier versions did."""
    declared = description.get("frontier")
    if not isinstance(declared, Mapping) or not isinstance(declared.get("values"), (list, tuple)):
        return None
    return FrontierFacts(
        name=json_values.text(declared, "name"),
        values=tuple(declared["values"]),
        tolerance=json_values.number(description, "tolerance", 0.5),
        images=json_values.whole_number(description, "val_size", 0),
        workers=json_values.whole_number(description, "workers", 1),
        objective=objective,
    )


def ordered_values(values: Sequence[object]) -> tuple[object, ...]:
    """Numbers by size; other values in the order in which the space lists them."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return tuple(sorted(values, key=lambda value: float(value)))  # type: ignore[arg-type]
    return tuple(values)


def counted_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """One trial for each configuration: without those that were repeated, continued or trained in full after a cheap
    run, and without confirmations."""
    replaced = {*retried_trials(trials), *continued_trials(trials), *promoted_trials(trials)}
    return [t for t in trials if t.number not in replaced and CONFIRMS_ATTR not in t.user_attrs]


def answer_index(gains: Sequence[float | None], tolerance: float) -> int:
    """Place of the last value that is at most ``tolerance`` below the best. Larger gains are better; None: unknown.

    Raises ValueError if none is known.
    """
    best = max(gain for gain in gains if gain is not None)
    return max(i for i, gain in enumerate(gains) if gain is not None and gain >= best - tolerance - _SLACK)


def frontier_of(trials: Sequence[FrozenTrial], facts: FrontierFacts) -> Frontier | None:
    """The frontier of these trials; None before the first one has finished."""
    confirmed, lost, given = _confirmed(trials, facts), diverged_confirmations(trials), given_trials(trials)
    by_value: dict[object, list[FrozenTrial]] = {value: [] for value in facts.values}
    for trial in counted_trials(trials):
        if trial.state != TrialState.WAITING and (value := value_of_trial(trial, facts)) in by_value:
            by_value[value].append(trial)
    rows = [_row(value, by_value[value], confirmed, lost, given, facts) for value in facts.values]
    gains = [facts.objective.gain(row.best.objective) if row.best else None for row in rows]
    comparable = _comparable(rows)
    if not comparable:
        return None
    candidates = [gain if row in comparable else None for row, gain in zip(rows, gains, strict=True)]
    top = max(gain for gain in candidates if gain is not None)
    compared = [
        FrontierRow(
            row.value,
            row.tried,
            row.finished,
            row.diverged,
            row.best,
            max(0.0, top - gain),
            _worse_at_most(i, rows, facts),
        )
        if gain is not None
        else row
        for i, (row, gain) in enumerate(zip(rows, gains, strict=True))
    ]
    return Frontier(facts, tuple(compared), answer_index(candidates, facts.tolerance * POINT))


def _comparable(rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """The rows among which the answer is chosen: confirmed ones if there are any, else all with a finished trial. Those
    that diverged with a fresh seed are compared only where no other row is left.

    The value for which a trial was chosen is too good by luck, so it is not compared with a confirmed one.
    """
    done = [row for row in rows if row.best is not None]
    sound = [row for row in done if row.best is not None and not row.best.seeds_diverged] or done
    return [row for row in sound if row.best is not None and row.best.seeds] or sound


def value_of_trial(trial: FrozenTrial, facts: FrontierFacts) -> object:
    """The trial's value of the frontier. What is fixed for the whole study is no parameter of its trials."""
    return trial.params.get(facts.name, facts.values[0] if len(facts.values) == 1 else None)


def confirmations(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The runs that confirm a trial with another seed, without those that ``--retry-failed`` has repeated."""
    again = retried_trials(trials)
    return [t for t in trials if CONFIRMS_ATTR in t.user_attrs and t.number not in again]


def diverged_confirmations(trials: Sequence[FrozenTrial]) -> Counter[int]:
    """Number of a confirmed trial → how many of its runs with other seeds diverged."""
    return Counter(int(t.user_attrs[CONFIRMS_ATTR]) for t in confirmations(trials) if has_diverged(t))


def _confirmed(trials: Sequence[FrozenTrial], facts: FrontierFacts) -> dict[int, list[float]]:
    """Number of a confirmed trial → what the runs with other seeds came to."""
    found: dict[int, list[float]] = {}
    for trial in confirmations(trials):
        runs = found.setdefault(int(trial.user_attrs[CONFIRMS_ATTR]), [])
        if trial.state == TrialState.COMPLETE and trial.values:
            runs.append(trial.values[0])
        elif has_diverged(trial):
            runs.append(facts.objective.worst)
    return {number: runs for number, runs in found.items() if runs}


def _row(
    value: object,
    trials: Sequence[FrozenTrial],
    confirmed: Mapping[int, list[float]],
    lost: Mapping[int, int],
    given: Mapping[int, int],
    facts: FrontierFacts,
) -> FrontierRow:
    done = [t for t in trials if t.state == TrialState.COMPLETE and t.values]
    diverged = sum(has_diverged(t) for t in trials)
    # Where nobody knows what a diverged run is worth, a trial that diverged with another seed is no candidate at all.
    candidates = [t for t in done if not any(map(math.isnan, confirmed.get(t.number, ())))]
    candidates = [t for t in candidates if t.number not in lost] or candidates
    best = _best(candidates, confirmed, lost, given, facts) if candidates else None
    return FrontierRow(value, len(trials), len(done), diverged, best)


def before_equal_ones(trial: FrozenTrial, given: Mapping[int, int]) -> tuple[bool, int]:
    """Of trials that are equally good, the one for which this is smallest comes first: a configuration that was given,
    as published recipes are, because it has proved itself elsewhere too; then the earliest one.

    Args:
        given: as ``given_trials``.
    """
    return trial.number not in given, given.get(trial.number, trial.number)


def _best(
    done: Sequence[FrozenTrial],
    confirmed: Mapping[int, list[float]],
    lost: Mapping[int, int],
    given: Mapping[int, int],
    facts: FrontierFacts,
) -> BestOfValue:
    """The best confirmed trial; the best one if none was confirmed. Of equal ones, see ``before_equal_ones``."""
    among = [t for t in done if t.number in confirmed] or done
    worth = {t.number: statistics.fmean(confirmed.get(t.number, [t.values[0]])) for t in among}
    best = min(among, key=lambda t: (-facts.objective.gain(worth[t.number]), before_equal_ones(t, given)))
    seeds = confirmed.get(best.number, [])
    low, high = _interval(worth[best.number], seeds, len(among), facts)
    records = epoch_records(best)
    epochs = planned_epochs(best) or len(records)
    one_epoch_s = _median(epoch_s(record) for record in records)
    return BestOfValue(
        trial=best.number,
        objective=worth[best.number],
        low=low,
        high=high,
        seeds=len(seeds),
        seeds_diverged=lost.get(best.number, 0),
        epochs=epochs,
        optimizer_steps=json_values.whole_number(records[-1], "optimizer_steps", 0) or None if records else None,
        images_per_s=_median(json_values.number_or_none(record, "images_per_s") for record in records),
        epoch_s=one_epoch_s,
        gpu_hours=None if one_epoch_s is None else epochs * one_epoch_s * facts.workers / 3600,
        noise_scale=_median(json_values.number_or_none(record, "noise_scale") for record in records),
        holdout=json_values.number_or_none(records[-1], "holdout_top1") if records else None,
        config=migrated(configuration(best)),
    )


def _median(values: object) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]  # type: ignore[attr-defined]
    return statistics.median(known) if known else None


def _interval(
    value: float, seeds: Sequence[float], chosen_from: int, facts: FrontierFacts
) -> tuple[float | None, float | None]:
    """Interval of a value that is the best of ``chosen_from``; see the top of this file."""
    if not facts.objective.has_interval or not facts.images:
        return None, None
    rate = ERROR_RATE / chosen_from
    if seeds:
        return mean_over_seeds_interval(seeds, facts.images, rate)
    return clopper_pearson(right_answers(value, facts.images), facts.images, rate)


def _worse_at_most(place: int, rows: Sequence[FrontierRow], facts: FrontierFacts) -> float | None:
    """By how much the value may be worse than any other one, at 95 %: Newcombe's upper bound of the difference."""
    own = rows[place].best
    if own is None or own.low is None or own.high is None:
        return None
    bounds = [0.0]
    confirmed = [row for row in _comparable(rows) if row is not rows[place]]
    # The only confirmed value compares with what is known of the others, which were chosen for their luck.
    for other in (row.best for row in confirmed or rows if row is not rows[place]):
        if other is None or other.low is None or other.high is None:
            continue
        if facts.objective.direction == "maximize":
            above, below = other.high - other.objective, own.objective - own.low
        else:
            above, below = other.objective - other.low, own.high - own.objective
        gap = facts.objective.gain(other.objective) - facts.objective.gain(own.objective)
        bounds.append(gap + math.hypot(above, below))
    return max(bounds)
