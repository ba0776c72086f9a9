"""Whether the answer of a study was confirmed with fresh seeds, in one line: from frontier.json and study.json."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.base import json_values
from bigbatch.tune.console.answer_words import AnswerWords, counted_noun, short_number
from bigbatch.tune.runs.confirm_rule import LEAST_TRIALS

USUAL_SEEDS = 3
"""Fresh seeds that a line proposes."""


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
        return f"Confirmed with {counted_noun(seeds, 'fresh seed')}{words.of_each_seed()}.{left}"
    if running:
        return "Not confirmed with fresh seeds yet: the search goes on."
    if failed:
        return f"Not confirmed with fresh seeds: {counted_noun(failed, 'run')} failed: {command} --retry-failed"
    one = json_values.number_or_none(words.own, "gpu_hours")
    cost = f"; {USUAL_SEEDS} fresh seeds would train for about {short_number(USUAL_SEEDS * one)} {hours}" if one else ""
    why = _why_not(words, description, ended_early or bool(missing[0]))
    return f"Not confirmed with fresh seeds: {why}{cost}: {command} --confirm 1x{USUAL_SEEDS}"


def _why_not(words: AnswerWords, description: Mapping[str, object], ended_early: bool) -> str:
    rule = json_values.text(description, "confirm", "auto")
    if rule == "none":
        by_default = words.metric.is_proportion
        return "--confirm none was given" if by_default else "only accuracies are, unless --confirm asks for it"
    if sum(json_values.whole_number(row, "tried") for row in words.rows) < LEAST_TRIALS and rule == "auto":
        return f"a search of fewer than {LEAST_TRIALS} trials is too small for it"
    if ended_early or rule != "auto":
        return "the search ended before"
    budget = any(description.get(key) for key in ("budget_gpu_hours", "time_budget_s"))
    return f"it would take more than a fifth of the {'budget' if budget else 'search’s time'}"
