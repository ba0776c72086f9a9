"""The frontier as a table and a few sentences, from the content of frontier.json. Needs neither Optuna nor Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bigbatch.cluster.host import json_values
from bigbatch.tune.study.metrics import known_metrics

if TYPE_CHECKING:
    from bigbatch.tune.plan.frontier_plan import FrontierPlan
    from bigbatch.tune.watch.observer import TrialView

WIDTH = 100
"""Of the table where the output is no terminal."""
GAP = "  "
WORDS = {"global_batch_size": "batch", "batch.global_size": "batch"}
"""Parameters that people know by another word."""
OPTIONAL = ("images/s", "noise scale", "epoch", "held out")
"""Columns that a narrow terminal leaves out, the first ones first."""
Row = Mapping[str, object]


def frontier_lines(values: Mapping[str, object], hours: str, width: int = WIDTH) -> list[tuple[str, bool]]:
    """The table: each line, and whether it is that of the answer.

    Args:
        values: the content of frontier.json.
        hours: of devices, e.g. ``GPU h``.
        width: the most characters of a line. Columns are left out rather than cut.
    """
    rows = json_values.objects(values, "rows")
    answer = json_values.mapping(values, "answer").get("value")
    table = {"": [">" if row.get("value") == answer else "" for row in rows]}
    table[_word(values)] = [_whole(row.get("value")) for row in rows]
    table[_title(values)] = [_objective(row, values) for row in rows]
    if any(row.get("low") is not None for row in rows):
        table["95 % range"] = [_range(row) for row in rows]
    if any(row.get("holdout") is not None for row in rows):
        table["held out"] = [_percent(row.get("holdout")) for row in rows]
    for title, key, text in (
        ("steps", "optimizer_steps", _whole),
        ("images/s", "images_per_s", _whole),
        ("epoch", "epoch_s", _seconds),
        (hours, "gpu_hours", _short),
        ("noise scale", "noise_scale", _whole),
    ):
        if any(row.get(key) is not None for row in rows):  # a training function of the user's own has no steps
            table[title] = [text(row.get(key)) for row in rows]
    table["done/tried"] = [_counts(row) for row in rows]
    left_out = list(OPTIONAL)
    while _width(table) > width and left_out:
        table.pop(left_out.pop(0), None)
    return _aligned(table)


def of_the_answer(
    done: Sequence[TrialView], values: Mapping[str, object], frontier: FrontierPlan | None
) -> list[TrialView]:
    """Those of the finished trials that compare with the answer's, the answer's best trial first.

    All of them, as they are, without a frontier.
    """
    answer = json_values.mapping(values, "answer")
    best = next((trial for trial in done if trial.number == answer.get("trial")), None)
    if best is None or frontier is None:
        return list(done)
    name = frontier.name
    return [best, *(t for t in done if t is not best and t.params.get(name) == best.params.get(name))]


def _width(table: Mapping[str, Sequence[str]]) -> int:
    return sum(len(GAP) + max(map(len, [name, *cells])) for name, cells in table.items())


def _aligned(table: Mapping[str, Sequence[str]]) -> list[tuple[str, bool]]:
    widths = {name: max(map(len, [name, *cells])) for name, cells in table.items()}
    lines = [(GAP.join(name.rjust(widths[name]) for name in table), False)]
    for cells in zip(*table.values(), strict=True):
        line = GAP.join(cell.rjust(width) for cell, width in zip(cells, widths.values(), strict=True))
        lines.append((line, bool(cells[0])))
    return lines


def answer_in_words(values: Mapping[str, object], hours: str) -> list[str]:
    """Which value is the answer, what it saves, and whether the intervals allow the claim."""
    rows = [row for row in json_values.objects(values, "rows") if row.get("trial") is not None]
    answer = json_values.mapping(values, "answer")
    own = next(row for row in rows if row.get("value") == answer.get("value"))
    best = min(_compared(rows), key=lambda row: json_values.number(row, "worse_by"))
    word = _word(values)
    name, worth = f"{word} {_whole(own.get('value'))}", _objective(own, values)
    if len(rows) == 1:
        return [f"Only {name} has a finished trial: {worth} (trial {own.get('trial')})."]
    best_worth = f"{_objective(best, values)}, at {word} {_whole(best.get('value'))}"
    largest = f"{'largest' if _is_number(own.get('value')) else 'last'} {word}"
    first = (
        f"The {largest} within {_tolerance(values)} of the best is "
        f"{_whole(own.get('value'))}: {worth} (trial {own.get('trial')}); "
        f"{'no other one is better' if not own.get('worse_by') else f'the best is {best_worth}'}."
    )
    if own is rows[0]:
        images = json_values.whole_number(values, "validation_images")
        measured = f"On {images:,} validation images no" if images else "No"
        return [first, f"{measured} larger {word} comes that near, so nothing is saved."]
    return [text for text in (first, _saving(own, rows[0], word, hours), _certainty(values, own, word)) if text]


def _compared(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows among which the answer was chosen, as in ``frontier._comparable``."""
    sound = [row for row in rows if not json_values.whole_number(row, "seeds_diverged", 0)] or rows
    return [row for row in sound if json_values.whole_number(row, "seeds", 0)] or sound


def _saving(own: Row, smallest: Row, word: str, hours: str) -> str:
    """What a full run at the answer costs, against the smallest value."""
    parts = []
    for key, text, unit in (
        ("optimizer_steps", _whole, " optimizer steps"),
        ("epoch_s", _seconds, " for an epoch"),
        ("gpu_hours", _short, f" {hours} for the run"),
    ):
        mine, theirs = json_values.number_or_none(own, key), json_values.number_or_none(smallest, key)
        if mine is not None and theirs:
            parts.append(f"{text(mine)} instead of {text(theirs)}{unit} ({_change(mine / theirs)})")
    return f"Against {word} {_whole(smallest.get('value'))} it takes {', '.join(parts)}." if parts else ""


def _change(ratio: float) -> str:
    """``× 0.25``."""
    return f"× {ratio:.2g}"


def _certainty(values: Mapping[str, object], own: Row, word: str) -> str:
    at_most = json_values.number_or_none(own, "worse_at_most")
    if at_most is None:
        return "How certain that is, is not known: no interval is computed for this objective."
    images = json_values.whole_number(values, "validation_images")
    if json_values.mapping(values, "answer").get("is_certain"):
        return f"At 95 % it is at most {100 * at_most:.1f} points worse than any other {word}."
    seeds = "" if json_values.whole_number(own, "seeds") else " Fresh seeds and more validation images make it surer."
    return (
        f"That it is not more than {_tolerance(values)} worse is what was measured, but not certain: with {images:,} "
        f"validation images it may be up to {100 * at_most:.1f} points worse than another {word} (95 %).{seeds}"
    )


def _word(values: Mapping[str, object]) -> str:
    return name_in_words(json_values.text(values, "dimension"))


def name_in_words(name: str) -> str:
    """The frontier's parameter as people call it: ``batch``."""
    return WORDS.get(name, name.rpartition(".")[2])


def _title(values: Mapping[str, object]) -> str:
    name = json_values.text(values, "objective")
    return known_metrics()[name].short if name in known_metrics() else name


def _tolerance(values: Mapping[str, object]) -> str:
    """``0.5 points`` of an accuracy; of another metric what that is in its own unit, ``0.005``."""
    points = json_values.number(values, "tolerance")
    return f"{points:g} points" if json_values.text(values, "objective").endswith("_top1") else f"{points / 100:g}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _objective(row: Row, values: Mapping[str, object]) -> str:
    value, name = json_values.number_or_none(row, "objective"), json_values.text(values, "objective")
    if value is None:
        return "–"
    return known_metrics()[name].text(value) if name in known_metrics() else f"{value:.4g}"


def _percent(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, (int, float)) else "–"


def _range(row: Row) -> str:
    low, high = json_values.number_or_none(row, "low"), json_values.number_or_none(row, "high")
    return "–" if low is None or high is None else f"{100 * low:.1f}–{100 * high:.1f}"


def _counts(row: Row) -> str:
    """Trials that ran to their end, of those that were tried: ``3/5``, ``3/5, 1 div.`` if one diverged."""
    diverged = json_values.whole_number(row, "diverged")
    return f"{_whole(row.get('finished'))}/{_whole(row.get('tried'))}" + (f", {diverged} div." if diverged else "")


def _whole(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if _is_number(value) and float(str(value)).is_integer() else _large(value)


def _large(value: object) -> str:
    if not _is_number(value):
        return str(value)
    number = float(str(value))
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _short(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.3g}"


def _seconds(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.2g} s" if value < 10 else f"{value:.3g} s"
