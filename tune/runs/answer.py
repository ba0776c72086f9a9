"""The answer of a study with any objective, and the trial that its best.json holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bigbatch.tune.runs.frontier import Frontier, frontier_facts, frontier_of
from bigbatch.tune.runs.learned import NOTHING_LEARNED
from bigbatch.tune.runs.metrics import COSTS
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import AnyTrial, as_shown, epoch_records, search_trials


def answer_of(trials: Sequence[AnyTrial], description: Mapping[str, object], objectives: Objectives) -> Frontier | None:
    """The answer of a study; None before a trial has finished.

    Several objectives have a front instead, and a target the run that reached it first. So there is an answer only if
    it is that nothing has learned, by the first metric that training improves.
    """
    if objectives.one_metric:
        return frontier_of(trials, frontier_facts(description, objectives.first))
    improved = next((one.shown for one in objectives.each if not one.shown.name.endswith(COSTS)), None)
    if improved is None:
        return None
    whole = replace(frontier_facts(description, improved), name=None, values=(None,))
    found = frontier_of([_by_last_epoch(trial, improved) for trial in trials], whole)
    return found if found is not None and found.unusable_because == NOTHING_LEARNED else None


def _by_last_epoch(trial: AnyTrial, objective: Objective) -> AnyTrial:
    """The trial as one of a search for this objective alone."""
    records = epoch_records(trial)
    return as_shown(trial, values=[objective.value(records[-1])]) if trial.values and records else trial


def leading_trial(trials: Sequence[AnyTrial], frontier: Frontier | None, objectives: Objectives) -> AnyTrial | None:
    """The trial of best.json: that of the answer; without one the best in the first objective, or None."""
    if frontier is not None:
        return next(trial for trial in trials if trial.number == frontier.leading.trial)
    return objectives.best(search_trials(trials))
