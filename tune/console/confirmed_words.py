"""Confirmations in the plan's words, and finished trials in the order in which fresh seeds put them."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.tune.console.answer_words import name_in_words
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.confirm_rule import LEAST_TRIALS
from bigbatch.tune.runs.confirmed import Confirmed
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.observer import TrialView


def confirm_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's line about confirmations; none in a search that has no one metric to confirm."""
    rule, frontier = plan.confirm, plan.frontier
    small = not plan.open_ended and plan.trials < LEAST_TRIALS
    if not plan.objectives.one_metric:
        return []
    if not rule.best or (rule.affordable and small):
        why = f"fewer than {LEAST_TRIALS} trials" if rule.best else "only accuracies are by default"
        why = "--confirm none" if plan.options.confirm == "none" else why
        return [("confirm", f"nothing ({why}); --confirm 1x3 trains the best again with three fresh seeds")]
    values = len(frontier.values) if frontier else 1
    seeds = f"with {rule.seeds} fresh seed{'s' * (rule.seeds != 1)}"
    has_budget = plan.budget_gpu_hours is not None or plan.time_budget_s is not None
    if rule.affordable:
        which = "the answer and the best trial" if values > 1 else "the best trial"
        whole = "budget" if has_budget else "search's time"
        runs = min(2, values) * rule.seeds
        return [("confirm", f"{which} {seeds} (at most {runs} runs), as far as a fifth of the {whole} allows")]
    best = "the best trial" if rule.best == 1 else f"the {rule.best} best trials"
    which = f"{best} of each {name_in_words(frontier.name)}" if frontier and values > 1 else best
    kept = "; the budget keeps room for them" if has_budget else ""
    runs = rule.best * values * rule.seeds
    return [("confirm", f"{which} {seeds} ({f'at most {runs}' if values > 1 else runs} run{'s' * (runs != 1)}){kept}")]


def by_confirmed(done: list[TrialView], confirmed: Mapping[int, Confirmed], objective: Objective) -> list[TrialView]:
    """Finished trials, best first: those that were confirmed by their means, then the others as they are, last those
    that diverged with another seed and have no mean."""
    first = [trial for trial in done if trial.number in confirmed and not confirmed[trial.number].diverged]
    first.sort(key=lambda trial: (-objective.gain(confirmed[trial.number].mean), trial.number))
    lost = [trial for trial in done if trial.number in confirmed and confirmed[trial.number].diverged]
    return [*first, *(trial for trial in done if trial.number not in confirmed), *lost]


def seeds_in_words(found: Confirmed) -> str:
    """``3 fresh seeds``."""
    return f"{len(found.seeds)} fresh seed{'s' * (len(found.seeds) > 1)}"
