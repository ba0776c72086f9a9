"""The frontier as a table, for the terminal and the report, or why there is no result. Needs neither Optuna nor Ray.

The table comes from the content of frontier.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.tune.console.answer_words import (
    AnswerWords,
    Row,
    interval_text,
    number_text,
    seconds_words,
    short_number,
    value_text,
)
from bigbatch.tune.console.text import aligned
from bigbatch.tune.runs.learned import FRESH_SEEDS, HELD_OUT


def frontier_cells(values: Mapping[str, object], hours: str) -> dict[str, list[str]]:
    """The columns of the frontier's table: title → a text for each row. A column that says nothing is left out."""
    words = AnswerWords(values)
    rows, metric = words.rows, words.metric
    measured = {row.get("reported_by") for row in words.done}
    table = {
        words.word: [value_text(row.get("value")) for row in rows],
        f"{metric.short} held out" if measured == {HELD_OUT} else metric.short: [
            words.worth(row, "reported") for row in rows
        ],
        "95 % range": [interval_text(row, metric) for row in rows],
        "when chosen": [words.worth(row, "chosen_at") if measured & {HELD_OUT, FRESH_SEEDS} else "" for row in rows],
    }
    for title, key, text in (
        ("steps", "optimizer_steps", number_text),
        ("images/s", "images_per_s", number_text),
        ("epoch", "epoch_s", seconds_words),
        (hours, "gpu_hours", short_number),
        ("noise scale", "noise_scale", number_text),
    ):
        numbers = [json_values.number_or_none(row, key) for row in rows]
        table[title] = ["" if number is None else text(number) for number in numbers]
    table = {title: [cell or "–" for cell in cells] for title, cells in table.items() if any(cells)}
    return {**table, "done/tried": [_counts(row) for row in rows]}


def _counts(row: Row) -> str:
    """Trials that ran to their end, of those that were tried: ``3/5``, ``3/5, 1 div.`` if one diverged."""
    tried, diverged = json_values.whole_number(row, "tried"), json_values.whole_number(row, "diverged")
    if not tried:
        return "not tried"
    said = [f"{json_values.whole_number(row, 'finished')}/{tried}"]
    said += [f"{diverged} div."] if diverged else []
    return ", ".join(said + ["not learned"] * (row.get("learned") is False))


def frontier_lines(values: Mapping[str, object], hours: str) -> list[tuple[str, bool]]:
    """The table: each line, and whether it is that of the answer. Empty where no values are compared.

    Args:
        values: the content of frontier.json.
        hours: of devices, e.g. ``GPU h``.
    """
    words = AnswerWords(values)
    if words.dimension is None:
        return []
    table = {"": [">" if row is words.own else "" for row in words.rows], **frontier_cells(values, hours)}
    rows = [tuple(table), *zip(*table.values(), strict=True)]
    lines = aligned(rows, right=range(len(table))).splitlines()
    return [(line, bool(row[0])) for line, row in zip(lines, rows, strict=True)]


INFEASIBLE = "infeasible"
"""How a trial ended that violates a constraint of its space."""
ENDED_WORDS = {"PRUNED": "stopped early", "FAIL": "failed", "WAITING": "interrupted", "RUNNING": "running"}


def no_result_in_words(trials: Sequence[tuple[str, str]], *, several: bool) -> str:
    """Why nothing came out, and what helps.

    Args:
        trials: of each that has begun its state, or ``INFEASIBLE``, and why it ended. None of them ran to its end.
        several: whether the search has several objectives, so that its result is a front.
    """
    what = "the Pareto front is empty" if several else "there is no best trial"
    if trials and all(end == INFEASIBLE for end, _ in trials):
        which = f"none of the {len(trials)} trials meets" if len(trials) > 1 else "the only trial does not meet"
        return f"{what}: {which} the constraints of the space ({trials[-1][1]}). Loosen them, or widen the space."
    words = Counter(ENDED_WORDS.get(end, end) for end, _ in trials)
    listed = ", ".join(f"{count} {word}" for word, count in words.items())
    return f"{what}: no trial ran to its end{f' ({listed})' if listed else ''}."
