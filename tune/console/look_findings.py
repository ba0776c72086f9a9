"""What early looks and other studies told of the ends of the runs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.known_curves import known_prediction, rank_correlation
from bigbatch.tune.models.look_value import chance_of_little, correlation, looked_of
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.runs.knowledge import LABEL, KnownStudy
from bigbatch.tune.runs.run import ENQUEUED_ATTR, search_trials

FEWEST_RUNS = 8
"""Fewer finished runs say nothing about early values."""
LITTLE = 0.2
"""Up to this rank correlation, no early stopping is recommended. Of the tables in docs/results.md, the look
is better than no early stopping on t_c8, whose better runs have 0.4 after a tenth, and worse on projected (0.1) and on
algoperf_resnet (about 0)."""


def look_findings(stopping: str, facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[str]:
    """One line, for a search with ``--stopping look`` and enough runs to their end.

    The runs are those that the strategy sees (passing_sampler.py): no confirmations, and of a search in two parts those
    of the first part. The correlation is Spearman's, among the runs of one value of the frontier.
    The runs that went on were chosen for their early values, so that it is lower than among all configurations.
    """
    if stopping != "look":
        return []
    runs = [run for trial in search_trials(trials) if (run := looked_of(trial, facts)) is not None]
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


GOOD = 0.5
"""From this rank correlation on, another study is said to have predicted well."""


def known_findings(studies: Sequence[KnownStudy], facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[str]:
    """A line for each study, and one about the configurations that were tried first because they were its best."""
    done = [t for t in search_trials(list(trials)) if t.state == TrialState.COMPLETE and t.values]
    if not studies or not done:
        return []
    ends = [facts.objective.gain(t.values[0]) for t in done]
    groups = [t.params.get(facts.frontier) if facts.frontier else None for t in done]
    lines = []
    for study in studies:
        # The best of the other study that were tried first are among the results: they were all predicted to be good.
        found = rank_correlation(known_prediction(study, facts, [t.params for t in done]).tolist(), ends, groups)
        lines.append(f"{study.name} {_how_well(found, len(done))}")
    return [*lines, *_first_ones(facts, done, groups)]


def _how_well(correlation: float | None, results: int) -> str:
    if correlation is None:
        return f"predicted something, but {results} finished trials are too few, or too alike, to say how well."
    word = "well" if correlation >= GOOD else "a little" if correlation > 0 else "not at all"
    return f"predicted this search {word}: rank correlation {correlation:+.2f} over {results} finished trials."


def _first_ones(facts: SearchFacts, done: Sequence[FrozenTrial], groups: Sequence[object]) -> list[str]:
    """Where the configurations that other studies suggested ended among the trials that compare with them."""
    places = []
    for trial, group in zip(done, groups, strict=True):
        if str(trial.user_attrs.get(ENQUEUED_ATTR, "")).startswith(LABEL):
            others = [t for t, other in zip(done, groups, strict=True) if other == group]
            gain = facts.objective.gain(trial.values[0])
            better = sum(facts.objective.gain(t.values[0]) > gain for t in others)
            at = f" at {group}" if facts.frontier else ""
            places.append(f"trial {trial.number} is {better + 1} of {len(others)}{at}")
    return [f"Of what they suggested to try first: {', '.join(places)}."] if places else []
