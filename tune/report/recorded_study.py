"""Read a study for a report, also while it runs or where its files are damaged. Nothing is written or locked.

The journal is read up to its first incomplete line. If there is none, as with a database, or if it cannot be read, the
tables say what they know. ``StudyPoints`` is such a study as figures and tables show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.answer import answer_of, leading_trial
from bigbatch.tune.runs.feasible import INFEASIBLE_ATTR
from bigbatch.tune.runs.frontier import Frontier
from bigbatch.tune.runs.objective import UNREACHED_H
from bigbatch.tune.runs.objectives import Objectives, objectives_of
from bigbatch.tune.runs.run import (
    PAUSED_ATTR,
    AnyTrial,
    Kind,
    Run,
    continued_trials,
    count_ended,
    earlier_of,
    has_diverged,
    planned_epochs,
    search_trials,
    was_refused,
)
from bigbatch.tune.storage.summary import (
    DONE,
    INTERRUPTED,
    UNREADABLE,
    StudySummary,
    summarize,
)


@dataclass(frozen=True)
class RecordedStudy:
    """What a report needs to know of a study."""

    summary: StudySummary
    trials: tuple[AnyTrial, ...] = ()
    """All of them, also confirmations, in the order of their numbers."""
    objectives: Objectives = Objectives()
    frontier: Frontier | None = None
    """None before a trial has finished, and for a study without one."""
    problems: tuple[str, ...] = ()
    """What could not be read, in sentences."""
    label: str = ""
    """What it is called beside others of the same name; empty: by its name."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.summary.name

    @property
    def shown_name(self) -> str:
        """The study's name on a page and in a table."""
        return self.label or self.name

    @property
    def description(self) -> Mapping[str, Any]:
        """The values of study.json; empty if it cannot be read."""
        return self.summary.description

    @property
    def hours(self) -> str:
        """The unit of device hours."""
        return "GPU hours" if self.summary.has_gpus else "worker hours"


def shown_apart(studies: Sequence[RecordedStudy]) -> list[RecordedStudy]:
    """The studies; those of the same name have as much of their folder's end as label as tells them apart."""
    found = []
    for study in studies:
        same = [other.summary.folder.resolve().parts for other in studies if other.name == study.name]
        mine, depth = study.summary.folder.resolve().parts, 1
        while depth < len(mine) and sum(one[-depth:] == mine[-depth:] for one in same) > 1:
            depth += 1
        label = f"{study.name} ({'/'.join(mine[-depth:])})" if len(same) > 1 else ""
        found.append(replace(study, label=label))
    return found


def open_recorded(folder: Path) -> RecordedStudy:
    """The study in a folder. Never raises: what cannot be read is a sentence of ``problems``."""
    summary = summarize(folder)
    if summary.state == UNREADABLE and not summary.description:
        return RecordedStudy(summary, problems=(f"The study cannot be read: {summary.why}",))
    unread = [f"{summary.why}."] if summary.state == UNREADABLE and summary.why else []
    return _recorded(summary, summary.study.trials, [*unread, *([summary.problem] if summary.problem else [])])


def recorded_at_end(folder: Path, trials: Sequence[AnyTrial]) -> RecordedStudy:
    """The study whose search ends in this process.

    Args:
        trials: all of them.
    """
    summary = summarize(folder, details=False)
    done = summary.planned is None or count_ended(trials) >= summary.planned
    return _recorded(replace(summary, state=DONE if done else INTERRUPTED, why=""), trials, ())


def _recorded(summary: StudySummary, trials: Sequence[AnyTrial], problems: Sequence[str]) -> RecordedStudy:
    said = list(problems)
    try:
        objectives = objectives_of(summary.description)
    except ConfigError as error:
        objectives = Objectives()
        said.append(f"The objective cannot be read: {error}")
    frontier = None
    try:
        frontier = answer_of(trials, summary.description, objectives)
    except Exception as error:  # values that someone has edited may be anything
        said.append(f"The answer cannot be computed: {_one_line(error)}")
    return RecordedStudy(summary, tuple(trials), objectives, frontier, tuple(said))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


FINISHED, STOPPED, PAUSED, CONTINUED, INFEASIBLE, DIVERGENT, BROKEN, UNDER_WAY, WAITING = (
    "finished", "stopped early", "paused", "paused, continued later", "infeasible", "diverged", "failed", "running",
    "waiting",
)  # fmt: skip
"""How a trial ended, or that it did not."""


class StudyPoints:
    """A recorded study and what is shown of its trials."""

    def __init__(self, study: RecordedStudy) -> None:
        self.study = study
        self.all = tuple(Run.of(trial) for trial in study.trials if not was_refused(trial))
        self._continued = continued_trials(study.trials)
        self._curves: dict[int, tuple[tuple[int, float], ...]] = {}

    def outcome(self, run: Run) -> str:
        """How it ended, or that it did not."""
        if run.state == State.COMPLETE:
            return FINISHED
        if run.state == State.PRUNED:
            if run.user_attrs.get(INFEASIBLE_ATTR):
                return INFEASIBLE
            paused = CONTINUED if run.number in self._continued else PAUSED
            return paused if PAUSED_ATTR in run.user_attrs else STOPPED
        if run.state == State.FAIL:
            return DIVERGENT if has_diverged(run) else BROKEN
        return UNDER_WAY if run.state == State.RUNNING else WAITING

    def final(self, run: Run) -> float | None:
        """Its value of the first objective; None unless it has finished with one."""
        value = run.value if run.state == State.COMPLETE else None
        return value if value is not None and math.isfinite(value) and abs(value) < UNREACHED_H else None

    def curve(self, run: Run) -> tuple[tuple[int, float], ...]:
        """Epoch and watched metric."""
        if run.number not in self._curves:
            watched = self.study.objectives.first.shown
            values = [(json_values.whole_number(record, "epoch"), watched.value(record)) for record in run.records]
            self._curves[run.number] = tuple((at, value) for at, value in values if at > 0 and math.isfinite(value))
        return self._curves[run.number]

    def last_epoch(self, run: Run) -> int:
        """The last epoch of its curve; 0 before the first."""
        curve = self.curve(run)
        return curve[-1][0] if curve else 0

    def epochs_words(self, run: Run) -> str:
        """E.g. ``3 of 8``."""
        return f"{self.last_epoch(run)} of {planned_epochs(run) or '?'}"

    @cached_property
    def searched(self) -> tuple[Run, ...]:
        """The trials that have begun, without confirmations."""
        return tuple(p for p in search_trials(self.all) if p.state != State.WAITING or self.curve(p))

    @cached_property
    def finished(self) -> tuple[Run, ...]:
        """The trials with a final value, without confirmations."""
        return tuple(p for p in self.searched if self.final(p) is not None)

    @cached_property
    def best_first(self) -> tuple[Run, ...]:
        """The finished trials, the best one first."""
        gain = self.study.objectives.first.gain
        return tuple(sorted(self.finished, key=lambda p: (-gain(p.value or 0.0), p.number)))

    @cached_property
    def best(self) -> Run | None:
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

    def hours_of_all_epochs(self, point: Run) -> float | None:
        """Device hours of a trial and of the trials that it continues; None if those of one are not known."""
        by_number: dict[int | None, Run] = {p.number: p for p in self.all}
        parts = [point]
        while parts[-1].kind == Kind.CONTINUATION:
            earlier = by_number.get(earlier_of(parts[-1]))
            # A study that somebody has edited may go round in a circle.
            if earlier is None or earlier in parts:
                break
            parts.append(earlier)
        hours = [part.gpu_hours for part in parts if part.gpu_hours is not None]
        return sum(hours) if len(hours) == len(parts) else None

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


def warmup_share(run: Run) -> float | None:
    """The part of the run that is warmup, 0 to 1."""
    found = json_values.number_or_none(json_values.mapping(run.config, "schedule"), "warmup_epochs")
    planned = planned_epochs(run)
    return found / planned if found is not None and planned else None
