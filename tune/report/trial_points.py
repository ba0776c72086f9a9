"""What the figures and tables of a report show of each trial."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from optuna.trial import TrialState

from bigbatch.base import json_values
from bigbatch.tune.report.recorded_study import RecordedStudy
from bigbatch.tune.runs.answer import leading_trial
from bigbatch.tune.runs.confirmed import Confirmed, confirmed_trials
from bigbatch.tune.runs.feasible import INFEASIBLE_ATTR
from bigbatch.tune.runs.run import (
    CONFIRMS_ATTR,
    CONTINUES_ATTR,
    PAUSED_ATTR,
    AnyTrial,
    configuration,
    continued_trials,
    epoch_records,
    has_diverged,
    is_paused,
    planned_epochs,
    was_refused,
)
from bigbatch.tune.runs.target import UNREACHED_H

FINISHED, STOPPED, PAUSED, CONTINUED, INFEASIBLE, DIVERGENT, BROKEN, UNDER_WAY, WAITING = (
    "finished", "stopped early", "paused", "paused, continued later", "infeasible", "diverged", "failed", "running",
    "waiting",
)  # fmt: skip
"""How a trial ended, or that it did not."""
PUBLISHED_MOMENTUM, PUBLISHED_TRUST = 0.9, 0.001
"""Learning rates are shown as those that take equal steps at this momentum and this trust coefficient of LARS."""


@dataclass(frozen=True)
class TrialPoint:
    """One trial."""

    number: int
    outcome: str
    why: str
    """Why it ended, in the search's words; empty if it is not known."""
    params: Mapping[str, object]
    config: Mapping[str, object]
    value: float | None
    """Of the first objective; None unless the trial has finished with one."""
    curve: tuple[tuple[int, float], ...]
    """Epoch and watched metric."""
    planned: int | None
    noise_scale: float | None
    hours: float | None
    """Device hours of the trial, without those of the trial that it continues."""
    started: datetime | None
    ended: datetime | None
    confirms: int | None
    continues: int | None = None
    """The paused trial whose epochs this one goes on from."""

    @property
    def batch(self) -> int | None:
        """The global batch size."""
        return json_values.whole_number_or_none(json_values.mapping(self.config, "batch"), "global_size")

    @property
    def optimizer(self) -> str:
        """The optimizer's name; empty if it is not known."""
        return json_values.text(json_values.mapping(self.config, "optimizer"), "name")

    @property
    def rate(self) -> float | None:
        """The peak learning rate as trained."""
        return json_values.number_or_none(json_values.mapping(self.config, "optimizer"), "peak_lr")

    @property
    def comparable_rate(self) -> float | None:
        """The peak learning rate that takes equal steps with the momentum and the trust coefficient of publications.

        With SGD and LARS the noise depends on lr / (1 − momentum) (Smith et al. 2018, arXiv 1711.00489). LARS's step is
        lr × its trust coefficient.
        """
        rate, section = self.rate, json_values.mapping(self.config, "optimizer")
        if rate is None or rate <= 0:
            return None
        if self.optimizer in ("sgd", "lars"):
            momentum = json_values.number(section, "momentum", PUBLISHED_MOMENTUM)
            rate *= (1 - PUBLISHED_MOMENTUM) / max(1e-6, 1 - momentum)
        if self.optimizer == "lars":
            rate *= json_values.number(section, "trust_coefficient", PUBLISHED_TRUST) / PUBLISHED_TRUST
        return rate

    @property
    def warmup_share(self) -> float | None:
        """The part of the run that is warmup, 0 to 1."""
        schedule = json_values.mapping(self.config, "schedule")
        found = json_values.number_or_none(schedule, "warmup_epochs")
        return found / self.planned if found is not None and self.planned else None

    @property
    def last_epoch(self) -> int:
        """The last epoch that was reported; 0 before the first."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def end(self) -> tuple[int, float] | None:
        """The last point of the curve."""
        return self.curve[-1] if self.curve else None


class StudyPoints:
    """A recorded study and what is shown of its trials."""

    def __init__(self, study: RecordedStudy) -> None:
        self.study = study
        continued = continued_trials(study.trials)
        self.all = tuple(_point(trial, study, continued) for trial in study.trials if not was_refused(trial))

    @cached_property
    def searched(self) -> tuple[TrialPoint, ...]:
        """The trials that have begun, without confirmations."""
        return tuple(p for p in self.all if p.confirms is None and (p.outcome != WAITING or p.curve))

    @cached_property
    def finished(self) -> tuple[TrialPoint, ...]:
        """The trials with a final value, without confirmations."""
        return tuple(p for p in self.searched if p.value is not None)

    @cached_property
    def best_first(self) -> tuple[TrialPoint, ...]:
        """The finished trials, the best one first."""
        gain = self.study.objectives.first.gain
        return tuple(sorted(self.finished, key=lambda p: (-gain(p.value or 0.0), p.number)))

    @cached_property
    def confirmed(self) -> Mapping[int, Confirmed]:
        """Number of a trial that was trained again with fresh seeds → what came out."""
        return confirmed_trials(self.study.trials, self.study.objectives.first)

    @cached_property
    def best(self) -> TrialPoint | None:
        """The trial of ``best.json``."""
        found = leading_trial(self.study.trials, self.study.frontier, self.study.objectives)
        chosen = [p for p in self.finished if found is not None and p.number == found.number]
        return next(iter((*chosen, *self.best_first)), None)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """The global batches that occur."""
        return tuple(sorted({p.batch for p in self.searched if p.batch}))

    @cached_property
    def optimizers(self) -> tuple[str, ...]:
        """The optimizers that occur."""
        return tuple(sorted({p.optimizer for p in self.searched if p.optimizer}))

    def compared(self, least: int) -> tuple[dict[int, float], str]:
        """Values of the first objective by which trials compare, and a sentence that says which.

        The final ones, if at least ``least`` trials have finished. Else those of the watched metric after the latest
        epoch that ``least`` trials and half of the trials have reached. If there is none, the few final ones.
        """
        objective = self.study.objectives.first
        final = {p.number: p.value for p in self.finished if p.value is not None}
        if len(self.finished) >= least or objective.shown is not objective:
            return final, ""
        curves = {p.number: dict(p.curve) for p in self.searched if p.outcome != CONTINUED and p.curve}
        enough = max(least, len(curves) // 2)
        reached = [epoch for curve in curves.values() for epoch in curve]
        epoch = max((e for e in set(reached) if reached.count(e) >= enough), default=None)
        if epoch is None:
            return final, ""
        values = {number: curve[epoch] for number, curve in curves.items() if epoch in curve}
        done = len(self.finished)
        few = f"Only {done} trials have finished, so trials are compared by their values after epoch {epoch}"
        return values, f"{few}, which {len(values)} have reached. Early values favour fast starts."

    def hours_of_all_epochs(self, point: TrialPoint) -> float | None:
        """Device hours of a trial and of the trials that it continues; None if those of one are not known."""
        by_number, total, seen = {p.number: p for p in self.all}, 0.0, set[int]()
        part: TrialPoint | None = point
        while part is not None and part.number not in seen:
            if part.hours is None:
                return None
            total += part.hours
            seen.add(part.number)
            part = by_number.get(part.continues) if part.continues is not None else None
        return total

    @property
    def is_percent(self) -> bool:
        """Whether the first objective is shown in per cent."""
        return self.study.objectives.first.name.endswith("_top1")

    def shown(self, value: float | None) -> float | None:
        """A value of the first objective as the figures show it."""
        return None if value is None else 100 * value if self.is_percent else value

    @property
    def value_title(self) -> str:
        """The axis of the first objective."""
        title = self.study.objectives.first.metric.title
        return f"{title} (%)" if self.is_percent else title


def _point(trial: AnyTrial, study: RecordedStudy, continued: Mapping[int, int]) -> TrialPoint:
    records = epoch_records(trial)
    watched = study.objectives.first.shown
    values = [(json_values.whole_number(r, "epoch"), watched.value(r)) for r in records if isinstance(r, Mapping)]
    attrs = trial.user_attrs
    return TrialPoint(
        number=trial.number,
        outcome=_outcome(trial, continued),
        why=json_values.text(attrs, "ended_because"),
        params=trial.params,
        config=configuration(trial),
        value=_final(trial),
        curve=tuple((epoch, value) for epoch, value in values if epoch > 0 and math.isfinite(value)),
        planned=planned_epochs(trial),
        noise_scale=_median([json_values.number_or_none(r, "noise_scale") for r in records]),
        hours=json_values.number_or_none(attrs, "gpu_hours"),
        started=trial.datetime_start,
        ended=trial.datetime_complete,
        confirms=json_values.whole_number_or_none(attrs, CONFIRMS_ATTR),
        continues=json_values.whole_number_or_none(attrs, CONTINUES_ATTR),
    )


def _outcome(trial: AnyTrial, continued: Mapping[int, int]) -> str:
    if trial.state == TrialState.COMPLETE:
        return FINISHED
    if trial.state == TrialState.PRUNED:
        if trial.user_attrs.get(INFEASIBLE_ATTR):
            return INFEASIBLE
        paused = is_paused(trial) or PAUSED_ATTR in trial.user_attrs
        return (CONTINUED if trial.number in continued else PAUSED) if paused else STOPPED
    if trial.state == TrialState.FAIL:
        return DIVERGENT if has_diverged(trial) else BROKEN
    return UNDER_WAY if trial.state == TrialState.RUNNING else WAITING


def _final(trial: AnyTrial) -> float | None:
    values = trial.values if trial.state == TrialState.COMPLETE else None
    first = values[0] if values else None
    return first if first is not None and math.isfinite(first) and abs(first) < UNREACHED_H else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None
