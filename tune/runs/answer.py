"""The answer of a study with any objective, and the trial that its best.json holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigbatch.tune.runs.frontier import Frontier, frontier_facts, frontier_of
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import AnyTrial, search_trials


def answer_of(trials: Sequence[AnyTrial], description: Mapping[str, object], objectives: Objectives) -> Frontier | None:
    """The answer of a study. None before a trial has finished; for several objectives, which have a front instead; and
    for a target, where the best run is the one that reached it in the fewest device hours."""
    return frontier_of(trials, frontier_facts(description, objectives.first)) if objectives.one_metric else None


def leading_trial(trials: Sequence[AnyTrial], frontier: Frontier | None, objectives: Objectives) -> AnyTrial | None:
    """The trial of best.json: the answer's trial; without an answer the best one in the first objective, or None."""
    if frontier is not None:
        return next(trial for trial in trials if trial.number == frontier.leading.trial)
    return objectives.best(search_trials(trials))
