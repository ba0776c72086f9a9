"""How well the values at the early look told the ends of the runs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from bigbatch.tune.strategies.look_value import chance_of_little, correlation, looked_of
from bigbatch.tune.strategies.protocol import SearchFacts
from bigbatch.tune.study.cheap_runs import as_finished
from bigbatch.tune.study.trial_facts import Kind, of_kind

FEWEST_RUNS = 8
"""Fewer finished runs say nothing about early values."""
LITTLE = 0.2
"""Up to this rank correlation, no early stopping is recommended. Of the tables in docs/results.md, the look
is better than no early stopping on t_c8, whose better runs have 0.4 after a tenth, and worse on projected (0.1) and on
algoperf_resnet (about 0)."""


def look_findings(stopping: str, facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[str]:
    """One line, for a search with ``--stopping look`` and enough runs to their end.

    The runs are those that the strategy sees (search_only.py): no confirmations, and of a search in two parts those of
    the first part. The correlation is Spearman's, among the runs of one value of the frontier.
    The runs that went on were chosen for their early values, so that it is lower than among all configurations.
    """
    if stopping != "look":
        return []
    own = [as_finished(trial) for trial in of_kind(trials, Kind.SEARCH, Kind.CONTINUATION, Kind.RETRY)]
    runs = [run for trial in own if (run := looked_of(trial, facts)) is not None]
    found = correlation(runs)
    if found is None or len(runs) < FEWEST_RUNS:
        return []
    said, chance = f"rank correlation {found:+.2f} over {len(runs)} finished runs.", chance_of_little(runs)
    told = chance < 0.5 if facts.open_ended else found > LITTLE
    words = [f"The values at the early look {'told' if told else 'said little of'} the ends: {said}"]
    if facts.open_ended:
        words.append(f"Of new trials {chance:.0%} run without a pause.")
    elif not told:
        words.append("Here --stopping none may find more.")
    return [" ".join(words)]
