"""What a search optimises, and what came out, in words: one metric, a time to a target, a Pareto front, or failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.trial import FrozenTrial

from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.errors import in_one_line
from bigbatch.tune.console.display import end_in_words
from bigbatch.tune.console.frontier_table import INFEASIBLE, no_result_in_words
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.objective import TimeToTarget
from bigbatch.tune.runs.objectives import PARETO_FILE, front_of
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.runs.run import was_refused


def objective_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's lines about objectives and constraints."""
    lines = [("objective", f"{objective.text}: {objective.sentence}") for objective in plan.objectives.each]
    if plan.objectives.several:
        lines.append(("", "several objectives: no trial is stopped early, and best.json is the best in the first one"))
    lines += [("constraint", text) for text in plan.constraints]
    return lines


def best_in_words(best: TrialView) -> str:
    """The line that names the best trial."""
    objective = best.objectives.first
    what = f"{objective.goal}: " if isinstance(objective, TimeToTarget) else f"{objective.metric.title} "
    return f"Best: trial {best.number}, {what}{end_in_words(best)} after {epochs_text(best.epoch)}"


def why_nothing(plan: SearchPlan, trials: Sequence[TrialView]) -> str:
    """Why no trial of the search is the best, or its front is empty; empty if there is nothing to say but that."""
    once = [t for t in trials if not t.is_replaced and t.confirms is None]
    unfinished = [(INFEASIBLE if t.is_infeasible else t.state, t.ended_because or "") for t in once]
    if not plan.objectives.several and not any(t.is_infeasible for t in once):
        return ""
    return no_result_in_words(unfinished, several=plan.objectives.several)


def front_in_words(plan: SearchPlan, done: list[TrialView]) -> str:
    """How many trials no other one beats. ``done``: sorted, the best in the first objective first."""
    front = front_of(plan.objectives, done, lambda trial: trial.ends)
    return (
        f"{len(front)} of {len(done)} finished trials are on the Pareto front: no other one is as good in all "
        f"objectives and better in one. {PARETO_FILE} has them, and bigbatch report a table."
    )


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
