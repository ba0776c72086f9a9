"""The best finished trial of each value of the frontier, as one short line of the live display."""

from __future__ import annotations

from collections.abc import Iterable

from bigbatch.tune.console.answer_words import name_in_words
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.runs.observer import TrialView, ranked

MOST_CHARACTERS = 80
LEFT_OUT = "…"


def best_by_value(trials: Iterable[TrialView], frontier: FrontierPlan, width: int = MOST_CHARACTERS) -> str:
    """``best by batch: 256 95.2 % · 512 94.8 % · 1,024 –``.

    Args:
        width: the most characters. Values of which no trial has finished are left out first, then the smallest ones.
    """
    best: dict[object, TrialView] = {}
    for trial in ranked(trials):
        best.setdefault(trial.params.get(frontier.name, frontier.values[0]), trial)
    parts = {value: f"{_text(value)} {_worth(best.get(value))}" for value in frontier.values}
    head, width = f"best by {name_in_words(frontier.name)}: ", min(width, MOST_CHARACTERS)
    values = list(frontier.values)
    while len(line := head + _joined(values, parts)) > width and values:
        values.remove(next((value for value in values if value not in best), values[0]))
    return line


def _joined(values: list[object], parts: dict[object, str]) -> str:
    left_out = [LEFT_OUT] if len(values) < len(parts) else []
    return " · ".join(left_out + [parts[value] for value in values])


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _worth(trial: TrialView | None) -> str:
    return "–" if trial is None else trial.objectives.first.worth(trial.ends[0])
