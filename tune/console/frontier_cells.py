"""The frontier's table, for the terminal and the report: from the content of frontier.json."""

from __future__ import annotations

from collections.abc import Mapping

from bigbatch.base import json_values
from bigbatch.tune.console.answer_words import (
    AnswerWords,
    Row,
    interval_text,
    rounded_text,
    seconds_words,
    short_number,
    value_text,
)
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
        ("steps", "optimizer_steps", rounded_text),
        ("images/s", "images_per_s", rounded_text),
        ("epoch", "epoch_s", seconds_words),
        (hours, "gpu_hours", short_number),
        ("noise scale", "noise_scale", rounded_text),
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
