"""The answer of a study: for each value of one parameter, usually the global batch, the best configuration; and the
largest value whose best configuration is not worse than the best of all by more than a tolerance.

A search that compares no values has one row, and its answer is that row's best trial. All of it is computed from the
trials and from study.json, so it can be made again at any time.

*Values that choose and values that report.* Rows are compared by the value that chooses: that of the search's own run,
or the mean over fresh seeds if the trial was confirmed. Confirmed rows are preferred, because the value for which a
trial was chosen is too good by luck. A person is shown a value that did not choose, if there is one
(``ReportedValue``): the value on held-out examples, else the mean over fresh seeds, else the value that chose.

*Nothing learned.* A row whose best run is not better than a constant prediction (``learned.py``) is no candidate. If no
row is left, or no run can be told apart from another, there is no answer: ``usable`` is false.

*Intervals* hold at 95 %. On held-out examples they are Clopper-Pearson intervals; for the best of k finished trials, by
the value that chose, the error rate is 5 % / k. With several seeds Student's t is added (reported.py). *How much worse*
a value may be than another follows from both intervals by Newcombe's rule for a difference (1998, method 10). It takes
the two as independent. They share their examples, which makes the difference more certain than the rule says.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from optuna.trial import TrialState

from bigbatch.base import json_values
from bigbatch.tune.runs import learned
from bigbatch.tune.runs.learned import HELD_OUT, INDISTINCT, NOTHING_LEARNED, baseline_of
from bigbatch.tune.runs.metrics import COSTS
from bigbatch.tune.runs.objective import HALF_A_POINT, Objective, Tolerance, read_tolerance
from bigbatch.tune.runs.reported import (
    Examples,
    ReportedValue,
    as_of_one_run,
    by_choice,
    confirmed_trials,
    difference,
    failed_confirmations,
    on_held_out,
    uncertainty,
)
from bigbatch.tune.runs.run import (
    AnyTrial,
    before_equal_ones,
    configuration,
    counted_trials,
    epoch_records,
    given_trials,
    has_diverged,
    planned_epochs,
    trials_per_gpu_of,
)
from bigbatch.tune.runs.tables import epoch_s

_SLACK = 1e-9
"""For sums of decimal fractions: 0.997 − 0.992 is a little more than 0.005."""


@dataclass(frozen=True)
class FrontierFacts:
    """What study.json says about the answer."""

    name: str | None = None
    """The parameter; None: the search compares no values."""
    values: tuple[object, ...] = (None,)
    """In order: the answer is the last one within the tolerance."""
    tolerance: Tolerance = HALF_A_POINT
    examples: Examples = Examples()
    workers: int = 1
    """Devices of a trial."""
    objective: Objective = Objective()
    description: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    """study.json."""

    @property
    def word(self) -> str:
        """The parameter as people call it: ``batch``."""
        return "trial" if self.name is None else "batch" if "batch" in self.name else self.name.rpartition(".")[2]


@dataclass(frozen=True)
class BestOfValue:
    """The best trial of one value, and what a full run of its configuration costs on these devices."""

    trial: int
    objective: float
    """The value by which rows compare: that of its last epoch, or the mean over fresh seeds if it was confirmed."""
    chosen_at: float
    """Of its own last epoch: the value for which the search chose it."""
    reported: ReportedValue
    seeds: int
    """Fresh seeds with which the trial was confirmed; 0: none."""
    seeds_diverged: int
    """How many of these runs diverged. Such a trial is the best only if the value has no other one."""
    seeds_failed: int
    """Runs with fresh seeds that ended without a result; ``--retry-failed`` repeats them."""
    learned: bool | None
    """Whether it is better than a constant prediction. None: nobody knows what that reaches."""
    still_rises: bool
    """Whether its value still rose steeply at its last epoch."""
    last_change: float | None
    """By how much its value changes from epoch to epoch, at its end."""
    epochs: int
    optimizer_steps: int | None
    images_per_s: float | None
    """Median over the epochs, all workers together."""
    epoch_s: float | None
    """Median over the epochs, with validation and checkpoints."""
    gpu_hours: float | None
    """Epochs × median epoch × devices. Without GPUs these are worker hours."""
    noise_scale: float | None
    """The gradient noise scale, in images: median over the epochs in which it was measured."""
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
    """How much worse than the best of all values, in the objective's unit; 0 for the best. None: it is not compared."""
    worse_at_most: float | None = None
    """How much worse at most than any other value, at 95 %, by the reported values; None without intervals."""
    refuted: bool = False
    """Whether the held-out examples show it to be worse than another value by more than the tolerance, at 95 %."""


@dataclass(frozen=True)
class Frontier:
    """All values, and which one is the answer."""

    facts: FrontierFacts
    rows: tuple[FrontierRow, ...]
    baseline: float | None
    """What a constant prediction reaches, in the objective's unit; None: nobody knows."""
    answer: int | None
    """Place of the largest value that is within the tolerance of the best. None: the study has no usable answer."""
    unusable_because: str | None = None
    """``NOTHING_LEARNED`` or ``INDISTINCT``, where there is no answer."""

    @property
    def usable(self) -> bool:
        """Whether anybody should act on it."""
        return self.answer is not None

    @property
    def finished_rows(self) -> list[FrontierRow]:
        """The rows with a finished trial."""
        return [row for row in self.rows if row.best is not None]

    @property
    def answer_row(self) -> FrontierRow | None:
        """The answer's row."""
        return None if self.answer is None else self.rows[self.answer]

    @property
    def answer_best(self) -> BestOfValue | None:
        """The answer's best trial."""
        return self.answer_row.best if self.answer_row else None

    @cached_property
    def reference(self) -> FrontierRow:
        """The row with the best value."""
        compared = [row for row in self.finished_rows if row.worse_by is not None]
        return min(compared or self.finished_rows, key=lambda row: row.worse_by or 0.0)

    @property
    def leading(self) -> BestOfValue:
        """The trial that best.json holds: the answer's; without a usable answer the best one of all."""
        best = self.answer_best or self.reference.best
        assert best is not None, "a frontier has a finished trial"
        return best

    @property
    def allowance(self) -> float:
        """The tolerance in the objective's unit."""
        best = self.reference.best
        return self.facts.tolerance.allowance(best.objective) if best else 0.0

    def may_be_good_enough(self, row: FrontierRow) -> bool:
        """Whether its best trial is worse than the best of all by the tolerance at most, or by a single example."""
        examples = self.facts.examples.choosing if self.facts.objective.metric.is_proportion else 0
        one = 1 / examples if examples else 0.0
        return row.worse_by is not None and row.worse_by <= max(self.allowance, one) + _SLACK

    @property
    def is_certain(self) -> bool | None:
        """Whether the intervals allow the claim that the answer is within the tolerance. None without intervals."""
        at_most = self.answer_row.worse_at_most if self.answer_row and len(self.finished_rows) > 1 else None
        return None if at_most is None else at_most <= self.allowance + _SLACK


def frontier_facts(description: Mapping[str, object], objective: Objective = Objective()) -> FrontierFacts:  # noqa: B008
    """What study.json declares. Without a frontier there is one row, of all trials."""
    declared = json_values.mapping(description, "frontier")
    values = declared.get("values")
    has_values = isinstance(values, (list, tuple))
    return FrontierFacts(
        name=json_values.text(declared, "name") if has_values else None,
        values=tuple(values) if isinstance(values, (list, tuple)) else (None,),
        tolerance=read_tolerance(json_values.text_or_none(description, "tolerance"), objective),
        examples=Examples(
            json_values.whole_number(description, "val_size", 0),
            json_values.whole_number(description, "holdout_size", 0),
            "images" if description.get("image_size") else "examples",
        ),
        workers=json_values.whole_number(description, "workers", 1),
        objective=objective,
        description=description,
    )


def answer_index(gains: Sequence[float | None], tolerance: Tolerance) -> int:
    """Place of the last value that is at most the tolerance below the best. Larger gains are better; None: unknown.

    Raises ValueError if none is known.
    """
    best = max(gain for gain in gains if gain is not None)
    bar = best - tolerance.allowance(best) - _SLACK * abs(best)
    return max(i for i, gain in enumerate(gains) if gain is not None and gain >= bar)


def frontier_of(trials: Sequence[AnyTrial], facts: FrontierFacts) -> Frontier | None:
    """The frontier of these trials; None before the first one has finished."""
    view = _Trials(trials, facts)
    rows = _refuted([view.row(value) for value in facts.values], facts)
    if not any(row.best for row in rows):
        return None
    candidates = _comparable(rows)
    because = NOTHING_LEARNED if not candidates else INDISTINCT if view.are_indistinct() else None
    gains = [facts.objective.gain(row.best.objective) if row.best and row in candidates else None for row in rows]
    top = max((gain for gain in gains if gain is not None), default=0.0)
    compared = [
        row
        if gain is None
        else replace(row, worse_by=max(0.0, top - gain), worse_at_most=_worse_at_most(row, rows, facts))
        for row, gain in zip(rows, gains, strict=True)
    ]
    answer = None if because else answer_index(gains, facts.tolerance)
    return Frontier(facts, tuple(compared), view.baseline, answer, because)


def _comparable(rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """The rows among which the answer is chosen: those that have learned, and of these only the confirmed ones, if any.
    Rows that diverged with a fresh seed, or that held-out examples refute, are left out if another row is left.

    The value for which a trial was chosen is too good by luck, so it is not compared with a confirmed one.
    """
    done = [row for row in rows if row.best is not None and row.best.learned is not False]
    done = [row for row in done if not row.refuted] or done
    sound = [row for row in done if row.best is not None and not row.best.seeds_diverged] or done
    return [row for row in sound if row.best is not None and row.best.seeds] or sound


def value_of_trial(trial: AnyTrial, facts: FrontierFacts) -> object:
    """The trial's value of the frontier. What is fixed for the whole study is no parameter of its trials."""
    only = facts.values[0] if len(facts.values) == 1 else None
    return only if facts.name is None else trial.params.get(facts.name, only)


class _Trials:
    """The trials of a study, sorted by what an answer needs of them."""

    def __init__(self, trials: Sequence[AnyTrial], facts: FrontierFacts) -> None:
        self.facts = facts
        self.confirmed = confirmed_trials(trials, facts.objective)
        self.failed = failed_confirmations(trials)
        self.given = given_trials(trials)
        self.baseline = baseline_of(trials, facts.description, facts.objective)
        self.by_value: dict[object, list[AnyTrial]] = {value: [] for value in facts.values}
        for trial in counted_trials(trials):
            if trial.state != TrialState.WAITING and (value := value_of_trial(trial, facts)) in self.by_value:
                self.by_value[value].append(trial)

    def row(self, value: object) -> FrontierRow:
        """What is known of one value."""
        trials = self.by_value[value]
        done = _finished(trials)
        # Where nobody knows what a diverged run is worth, a trial that diverged with another seed is no candidate.
        sure = [t for t in done if t.number not in self.confirmed or not math.isnan(self.confirmed[t.number].mean)]
        lost = {number for number, one in self.confirmed.items() if one.diverged}
        candidates = [t for t in sure if t.number not in lost] or sure
        best = self._best(candidates) if candidates else None
        return FrontierRow(value, len(trials), len(done), sum(map(has_diverged, trials)), best)

    def are_indistinct(self) -> bool:
        """Whether, without a baseline, no finished run can be told apart from another."""
        objective = self.facts.objective
        if self.baseline is not None or objective.name.endswith(COSTS):
            return False
        done = [trial for trials in self.by_value.values() for trial in _finished(trials)]
        changes = [learned.last_change(self._curve(trial)) for trial in done]
        return learned.cannot_be_told_apart([t.values[0] for t in done], changes)

    def _curve(self, trial: AnyTrial) -> list[float]:
        return [self.facts.objective.value(record) for record in epoch_records(trial)]

    def _best(self, done: Sequence[AnyTrial]) -> BestOfValue:
        """The best confirmed trial; the best one if none was confirmed. Of equal ones, see ``before_equal_ones``."""
        objective = self.facts.objective
        among = [t for t in done if t.number in self.confirmed] or done
        worth = {t.number: self.confirmed[t.number].mean if t.number in self.confirmed else t.values[0] for t in among}
        best = min(among, key=lambda t: (-objective.gain(worth[t.number]), before_equal_ones(t, self.given)))
        confirmed, value = self.confirmed.get(best.number), worth[best.number]
        reported = on_held_out(best, confirmed, self.facts.examples, objective)
        reported = reported or by_choice(value, confirmed, len(among), self.facts.examples, objective)
        curve, records = self._curve(best), epoch_records(best)
        epochs, one_epoch_s = planned_epochs(best) or len(records), _median(map(epoch_s, records))
        devices = self.facts.workers / trials_per_gpu_of(best)
        return BestOfValue(
            trial=best.number,
            objective=value,
            chosen_at=best.values[0],
            reported=reported,
            seeds=len(confirmed.seeds) if confirmed else 0,
            seeds_diverged=confirmed.diverged if confirmed else 0,
            seeds_failed=self.failed[best.number],
            learned=self._has_learned(best, reported, len(done)),
            still_rises=learned.still_rises(curve, self.baseline, objective),
            last_change=learned.last_change(curve),
            epochs=epochs,
            optimizer_steps=json_values.whole_number(records[-1], "optimizer_steps", 0) or None if records else None,
            images_per_s=_median(json_values.number_or_none(record, "images_per_s") for record in records),
            epoch_s=one_epoch_s,
            gpu_hours=None if one_epoch_s is None else epochs * one_epoch_s * devices / 3600,
            noise_scale=_median(json_values.number_or_none(record, "noise_scale") for record in records),
            config=configuration(best),
        )

    def _has_learned(self, trial: AnyTrial, reported: ReportedValue, tried: int) -> bool | None:
        """Whether the run that was chosen from ``tried`` ones has learned, by its own and by the reported value.

        The spread of seeds, or a diverged one, does not count: two seeds at 60 and 75 % have learned, although
        Student's interval of their mean is wider than the scale.
        """
        objective, curve = self.facts.objective, self._curve(trial)
        chosen = by_choice(trial.values[0], None, tried, self.facts.examples, objective)
        found = [
            learned.has_learned(one.value, uncertainty(one, curve, objective), self.baseline, objective)
            for one in (chosen, as_of_one_run(reported, objective))
        ]
        return None if None in found else all(found)


def _finished(trials: Sequence[AnyTrial]) -> list[AnyTrial]:
    return [t for t in trials if t.state == TrialState.COMPLETE and t.values]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None


def _refuted(rows: Sequence[FrontierRow], facts: FrontierFacts) -> list[FrontierRow]:
    """The rows. Those that are clearly worse than another one on held-out examples are marked as refuted.

    Held-out examples do not choose: otherwise their values would be too good as well. But they can refute an answer.
    """
    learnt = [row.best for row in rows if row.best is not None and row.best.learned is not False]
    held = [best.reported for best in learnt if best.reported.by == HELD_OUT]

    def is_refuted(one: ReportedValue) -> bool:
        allowance = facts.tolerance.allowance(max((other.value for other in held), key=facts.objective.gain))
        gaps = (difference(one, other, facts.objective) for other in held if other is not one)
        # gap[2] is how much less the gap may be: all of its interval must lie beyond the tolerance.
        return any(gap[0] - gap[2] > allowance for gap in gaps if gap is not None)

    return [
        replace(row, refuted=row.best is not None and row.best.reported in held and is_refuted(row.best.reported))
        for row in rows
    ]


def _worse_at_most(row: FrontierRow, rows: Sequence[FrontierRow], facts: FrontierFacts) -> float | None:
    """By how much the value may be worse than any other one, at 95 %: Newcombe's upper bound of the difference."""
    own = row.best.reported if row.best else None
    if own is None or own.low is None or own.high is None:
        return None
    gaps = [difference(own, other.best.reported, facts.objective) for other in rows if other is not row and other.best]
    return max([0.0, *(gap[0] + gap[1] for gap in gaps if gap is not None)])
