"""What a search optimises, and what came out, in words: one metric, a time to a target, a Pareto front, or failures.

Also what early looks and other studies told of the ends of the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.errors import in_one_line
from bigbatch.tune.console.columns import Columns
from bigbatch.tune.console.display import end_in_words
from bigbatch.tune.console.frontier_table import UnfinishedTrial, no_result_in_words
from bigbatch.tune.models.known_curves import known_prediction, rank_correlation
from bigbatch.tune.models.look_value import chance_of_little, correlation, looked_of
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.knowledge import KnownStudy
from bigbatch.tune.runs.objective import UNREACHED_H, TimeToTarget
from bigbatch.tune.runs.objectives import PARETO_FILE, front_of
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import search_trials, was_refused

MAX_ROWS_OF_FRONT = 20


def objective_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's lines about objectives and constraints."""
    lines = [("objective", f"{objective.text}: {objective.sentence}") for objective in plan.objectives.each]
    if plan.objectives.several:
        lines.append(("", "several objectives: no trial is stopped early, and best.json is the best in the first one"))
    stated = [(one, plan.baseline[one.name]) for one in plan.objectives.each if one.name in plan.baseline]
    lines += [("baseline", f"{one.metric.title} {one.worth(value)} by a constant prediction") for one, value in stated]
    lines += [("constraint", text) for text in plan.constraints]
    return lines


def best_in_words(best: TrialView) -> str:
    """The line that names the best trial."""
    objective = best.objectives.first
    if not isinstance(objective, TimeToTarget):
        return (
            f"Best: trial {best.number}, {objective.metric.title} {end_in_words(best)} after {epochs_text(best.epoch)}"
        )
    if best.ends[0] >= UNREACHED_H:
        return (
            f"No trial reached {objective.goal}. The nearest: trial {best.number}, "
            f"{end_in_words(best)} after {epochs_text(best.epoch)}"
        )
    return (
        f"Best: trial {best.number} reached {objective.goal} after {epochs_text(best.epoch)}, "
        f"in {end_in_words(best)} of its devices"
    )


def why_nothing(plan: SearchPlan, trials: Sequence[TrialView]) -> str:
    """Why no trial of the search is the best, or its front is empty; empty if there is nothing to say but that."""
    once = [t for t in trials if not t.is_replaced and t.confirms is None]
    unfinished = [UnfinishedTrial(t.state, t.is_infeasible, t.ended_because or "") for t in once]
    if not plan.objectives.several and not any(trial.infeasible for trial in unfinished):
        return ""
    return no_result_in_words(unfinished, several=plan.objectives.several)


def print_front(plan: SearchPlan, done: list[TrialView], columns: Columns, console: Console) -> None:
    """The trials that no other one beats, as a table. ``done``: sorted, the best in the first objective first."""
    each = plan.objectives.each
    front = front_of(plan.objectives, done, lambda trial: trial.ends)
    console.print(
        f"\n{len(front)} of {len(done)} finished trials are on the Pareto front: no other one is as good in all "
        f"objectives and better in one. Intervals are not given. {PARETO_FILE} has them all:",
        soft_wrap=True,
    )
    console.print("  " + "".join(f"{objective.text:>18}" for objective in each) + "  trial")
    for trial in front[:MAX_ROWS_OF_FRONT]:
        values = "".join(f"{o.worth(value):>18}" for o, value in zip(each, trial.ends, strict=True))
        console.print(f"  {values}  {trial.number}: {columns.line(trial)}", soft_wrap=True)


def failures_in_words(trials: Iterable[TrialView]) -> list[str]:
    """A text for each failed trial. One of several lines names the first trial where it would repeat that one's."""
    said: dict[str, int] = {}
    texts = []
    for trial in trials:
        if trial.state != "FAIL":
            continue
        again = f" (tried again as trial {trial.retried_by})" if trial.retried_by is not None else ""
        because = trial.ended_because or ""
        first = said.setdefault(because, trial.number)
        if "\n" in because and first != trial.number:
            because = f"as trial {first}"
        texts.append(f"trial {trial.number} failed{again}: {because}")
    return texts


def refusals_in_words(trials: Sequence[FrozenTrial]) -> list[str]:
    """A line about the configurations that could not begin; no line if all could."""
    refused = [trial for trial in trials if was_refused(trial)]
    if not refused:
        return []
    because = in_one_line(str(refused[-1].user_attrs.get("ended_because", "")))
    what = f"{len(refused)} configuration{'s were' if len(refused) > 1 else ' was'} refused before training"
    return [f"{what}, and cost{'' if len(refused) > 1 else 's'} no trial; the last one: {because}."]


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
    """A line for each study: how well it predicted this search."""
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
    return lines


def _how_well(correlation: float | None, results: int) -> str:
    if correlation is None:
        return f"predicted something, but {results} finished trials are too few, or too alike, to say how well."
    word = "well" if correlation >= GOOD else "a little" if correlation > 0 else "not at all"
    return f"predicted this search {word}: rank correlation {correlation:+.2f} over {results} finished trials."
