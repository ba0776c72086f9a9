"""Confirmations with fresh seeds, in words: those that a plan will make, and whether a study's answer was confirmed.

Needs neither Optuna nor Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.tune.console.answer_words import AnswerWords, counted_noun, name_in_words, short_number
from bigbatch.tune.runs.confirm_rule import AFFORDABLE_WORKER_S, LEAST_TRIALS

if TYPE_CHECKING:
    from bigbatch.tune.plan.search_plan import SearchPlan

USUAL_SEEDS = 3
"""Fresh seeds that a line proposes."""
ENDED_BEFORE = "the search ended before"


def confirmation_in_words(
    values: Mapping[str, object],
    description: Mapping[str, object],
    command: str,
    hours: str = "GPU h",
    missing: tuple[int, float] = (0, 0.0),
    *,
    running: bool = False,
    ended_early: bool = False,
) -> str:
    """The one line that says whether the answer was confirmed with fresh seeds: with what result; or why not, what it
    would cost, and the command.

    Args:
        values, description: the content of frontier.json and study.json.
        command: continues the study.
        missing: confirmations that are still to be made, as far as anybody counted, and what they take in ``hours``.
        running: whether the search goes on.
        ended_early: whether it has ended before its trials and confirmations had.
    """
    words = AnswerWords(values)
    if words.own is None:
        return "Not confirmed: there is no answer to confirm."
    failed = json_values.whole_number(words.own, "seeds_failed")
    left = f" {counted_noun(failed, 'further run')} failed: {command} --retry-failed" if failed else ""
    if missing[0] and not failed and not running:
        more = counted_noun(missing[0], "more run")
        left = f" The search ended before {more} (about {short_number(missing[1])} {hours}): {command}"
    if seeds := json_values.whole_number(words.own, "seeds"):
        each = words.own.get("values")
        equal = isinstance(each, (list, tuple)) and len(each) > 1 and len(set(each)) == 1
        if equal and description.get("trainable"):  # of a function of the user's, which may ignore it
            left = " All are equal: if the function does not use config['seed'], they confirm nothing." + left
        return f"Confirmed with {counted_noun(seeds, 'fresh seed')}{words.of_each_seed()}.{left}"
    if running:
        return "Not confirmed with fresh seeds yet: the search goes on."
    if failed:
        return f"Not confirmed with fresh seeds: {counted_noun(failed, 'run')} failed: {command} --retry-failed"
    why = _why_not(words, description, ended_early or bool(missing[0]))
    if why == ENDED_BEFORE:  # the study knows what it was to confirm
        runs = f" {counted_noun(missing[0], 'run')} (about {short_number(missing[1])} {hours})" if missing[0] else ""
        return f"Not confirmed with fresh seeds: {why}{runs}: {command}"
    one = sum(json_values.number_or_none(row, "gpu_hours") or 0.0 for row in words.done)  # 1x3: of each value
    seeds_of = f"{USUAL_SEEDS} fresh seeds" + (f" of each {words.word}" if len(words.done) > 1 else "")
    cost = f"; {seeds_of} would train for about {short_number(USUAL_SEEDS * one)} {hours}" if one else ""
    return f"Not confirmed with fresh seeds: {why}{cost}: {command} --confirm 1x{USUAL_SEEDS}"


def _why_not(words: AnswerWords, description: Mapping[str, object], ended_early: bool) -> str:
    rule = json_values.text(description, "confirm", "auto")
    if rule == "none":
        by_default = words.metric.is_proportion
        return "--confirm none was given" if by_default else "only accuracies are, unless --confirm asks for it"
    if sum(json_values.whole_number(row, "tried") for row in words.rows) < LEAST_TRIALS and rule == "auto":
        return f"a search of fewer than {LEAST_TRIALS} trials is too small for it"
    if ended_early or rule != "auto":
        return ENDED_BEFORE
    budget = any(description.get(key) for key in ("budget_gpu_hours", "time_budget_s"))
    return f"it would take more than a fifth of the {'budget' if budget else 'search’s time'}"


def confirm_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's line about confirmations; none in a search without a single metric to confirm."""
    rule, frontier = plan.confirm, plan.frontier
    values = len(frontier.values) if frontier else 1
    of_each = f" of each {name_in_words(frontier.name)}" if frontier and values > 1 else ""
    if not plan.objectives.one_metric:
        return []
    if not rule.best or (rule.affordable and not plan.open_ended and plan.trials < LEAST_TRIALS):
        # A resumed study has "none" of another metric, whether that was asked for or not.
        why = "--confirm none" if plan.objectives.first.metric.is_proportion else "only accuracies are by default"
        why = f"fewer than {LEAST_TRIALS} trials" if rule.best else why
        return [("confirm", f"nothing ({why}); --confirm 1x3 trains the best{of_each} again with three fresh seeds")]
    seeds = f"with {counted_noun(rule.seeds, 'fresh seed')}"
    has_budget = plan.budget_gpu_hours is not None or plan.time_budget_s is not None
    if rule.affordable:
        which = "the answer and the best trial" if values > 1 else "the best trial"
        whole = "budget" if has_budget else f"search's time (at least {AFFORDABLE_WORKER_S / 60:.0f} worker minutes)"
        return [("confirm", f"{which} {seeds}, as far as a fifth of the {whole} allows")]
    best = "the best trial" if rule.best == 1 else f"the {rule.best} best trials"
    runs = counted_noun(rule.best * values * rule.seeds, "run")
    kept = "; the budget keeps room for them" if has_budget else ""
    return [("confirm", f"{best}{of_each} {seeds} (at most {runs}){kept}")]
