"""The frontier as a table, from the content of frontier.json. Needs neither Optuna nor Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bigbatch.tune.console.answer_words import AnswerWords, Row
from bigbatch.tune.console.frontier_cells import frontier_cells

if TYPE_CHECKING:
    from bigbatch.tune.plan.search_plan import FrontierPlan
    from bigbatch.tune.runs.observer import TrialView

WIDTH = 100
"""Of the table where the output is no terminal."""
GAP = "  "
OPTIONAL = ("images/s", "noise scale", "epoch", "steps", "when chosen", "95 % range")
"""Columns that a narrow terminal leaves out, the first ones first."""


def frontier_lines(values: Mapping[str, object], hours: str, width: int = WIDTH) -> list[tuple[str, bool]]:
    """The table: each line, and whether it is that of the answer. Empty where no values are compared.

    Args:
        values: the content of frontier.json.
        hours: of devices, e.g. ``GPU h``.
        width: the most characters of a line. Columns are left out rather than cut.
    """
    words = AnswerWords(values)
    if words.dimension is None:
        return []
    table = {"": [">" if row is words.own else "" for row in words.rows], **frontier_cells(values, hours)}
    left_out = list(OPTIONAL)
    while _width(table) > width and left_out:
        table.pop(left_out.pop(0), None)
    return _aligned(table)


def of_the_answer(done: Sequence[TrialView], answer: Row, frontier: FrontierPlan | None) -> list[TrialView]:
    """Those of the finished trials that compare with the answer's, the answer's best trial first.

    Args:
        answer: ``answer`` of frontier.json; empty: all trials, as they are.
    """
    best = next((trial for trial in done if trial.number == answer.get("trial")), None)
    if best is None:
        return list(done)
    name = frontier.name if frontier else None
    same = [t for t in done if name is None or t.params.get(name) == best.params.get(name)]
    return [best, *(t for t in same if t is not best)]


def _width(table: Mapping[str, Sequence[str]]) -> int:
    return sum(len(GAP) + max(map(len, [name, *cells])) for name, cells in table.items())


def _aligned(table: Mapping[str, Sequence[str]]) -> list[tuple[str, bool]]:
    widths = {name: max(map(len, [name, *cells])) for name, cells in table.items()}
    lines = [(GAP.join(name.rjust(widths[name]) for name in table), False)]
    for cells in zip(*table.values(), strict=True):
        line = GAP.join(cell.rjust(width) for cell, width in zip(cells, widths.values(), strict=True))
        lines.append((line, bool(cells[0])))
    return lines
