"""Read a study for a report, also while it runs or where its files are damaged. Nothing is written or locked.

The journal is read up to its first incomplete line. Without a journal (with a database), or if it cannot be read, the
tables are read.
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
    Run,
    continued_trials,
    count_ended,
    has_diverged,
    search_trials,
    was_refused,
)
from bigbatch.tune.storage.summary import DONE, INTERRUPTED, UNREADABLE, StudySummary, summarize

FINISHED, STOPPED, PAUSED, INFEASIBLE, DIVERGENT, BROKEN, UNDER_WAY, WAITING = (
    "finished", "stopped early", "paused", "infeasible", "diverged", "failed", "running", "waiting",
)  # fmt: skip
"""How a trial ended, or that it did not."""
OUTCOMES = {State.PRUNED: STOPPED, State.COMPLETE: FINISHED, State.FAIL: BROKEN, State.RUNNING: UNDER_WAY}
CONTINUED = "paused, continued later"


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

    @property
    def name(self) -> str:
        """The study's name."""
        return self.summary.name

    @property
    def description(self) -> Mapping[str, Any]:
        """The values of study.json; empty if it cannot be read."""
        return self.summary.description

    @property
    def hours(self) -> str:
        """The unit of device hours."""
        return "GPU hours" if self.summary.has_gpus else "worker hours"

    @cached_property
    def all(self) -> tuple[Run, ...]:
        """The trials, without those that were refused."""
        return tuple(Run.of(trial) for trial in self.trials if not was_refused(trial))

    @cached_property
    def searched(self) -> tuple[Run, ...]:
        """The trials that have begun, without confirmations."""
        return tuple(run for run in search_trials(self.all) if run.state != State.WAITING or self.curve(run))

    @cached_property
    def best_first(self) -> tuple[Run, ...]:
        """The finished trials without confirmations, the best one first."""
        return tuple(self.objectives.ranked(run for run in self.searched if self.final(run) is not None))

    @cached_property
    def best(self) -> Run | None:
        """The trial of ``best.json``."""
        found = leading_trial(self.trials, self.frontier, self.objectives)
        chosen = [run for run in self.best_first if found is not None and run.number == found.number]
        return next(iter((*chosen, *self.best_first)), None)

    @cached_property
    def optimizers(self) -> tuple[str, ...]:
        """The optimizers that occur."""
        return tuple(sorted({run.optimizer for run in self.searched if run.optimizer}))

    @cached_property
    def _continued(self) -> dict[int, int]:
        return continued_trials(self.trials)

    def outcome(self, run: Run) -> str:
        """How the trial ended."""
        if run.state == State.PRUNED and run.user_attrs.get(INFEASIBLE_ATTR):
            return INFEASIBLE
        if run.state == State.PRUNED and PAUSED_ATTR in run.user_attrs:
            return CONTINUED if run.number in self._continued else PAUSED
        return DIVERGENT if has_diverged(run) else OUTCOMES.get(run.state, WAITING)

    def final(self, run: Run) -> float | None:
        """Its value of the first objective; None unless it has finished with one."""
        value = run.value if run.state == State.COMPLETE else None
        return value if value is not None and math.isfinite(value) and abs(value) < UNREACHED_H else None

    def curve(self, run: Run) -> list[tuple[int, float]]:
        """Epoch and watched metric."""
        watched = self.objectives.first.shown
        values = [(json_values.whole_number(record, "epoch"), watched.value(record)) for record in run.records]
        return [(at, value) for at, value in values if at > 0 and math.isfinite(value)]


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
        said.append(f"The answer cannot be computed: {type(error).__name__}: {' '.join(str(error).split())}"[:300])
    return RecordedStudy(summary, tuple(trials), objectives, frontier, tuple(said))
