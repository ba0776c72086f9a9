"""How well the values at the early look told the ends of the runs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.early_look import look_epoch
from bigbatch.tune.strategies.known_prediction import rank_correlation
from bigbatch.tune.strategies.protocol import SearchFacts
from bigbatch.tune.study.confirmation import search_trials
from bigbatch.tune.study.trial_facts import planned_epochs

FEWEST_RUNS = 8
"""Fewer finished runs say nothing about early values."""
LITTLE = 0.2
"""Up to this rank correlation, no early stopping is recommended. Of the tables in docs/results.md, the look
is better than no early stopping on t_c8, whose better runs have 0.4 after a tenth, and worse on projected (0.1) and on
algoperf_resnet (about 0)."""


def look_findings(stopping: str, facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[str]:
    """One line, for a search with ``--stopping look`` and enough runs to their end.

    The correlation is Spearman's, among the runs of one value of the frontier and of as many epochs. The runs that went
    on were chosen for their early values, so that it is lower than among all configurations.
    """
    if stopping != "look":
        return []
    early, ends, groups = list[float](), list[float](), list[object]()
    for trial in search_trials(list(trials)):
        looked = trial.intermediate_values.get(look_epoch(trial, facts.max_epochs))
        if trial.state == TrialState.COMPLETE and trial.values and looked is not None:
            early.append(facts.objective.gain(looked))
            ends.append(facts.objective.gain(trial.values[0]))
            value = trial.params.get(facts.frontier) if facts.frontier else None
            groups.append((value, planned_epochs(trial)))
    found = rank_correlation(early, ends, groups) if len(ends) >= FEWEST_RUNS else None
    if found is None:
        return []
    said = f"rank correlation {found:+.2f} over {len(ends)} finished runs."
    if found > LITTLE:
        return [f"The values at the early look told the ends: {said}"]
    return [f"The values at the early look said little of the ends: {said} Here --stopping none may find more."]
