"""What a simulated search has found by when: the hit and the regret of search_efficiency.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

from replay.curves import CurveTable
from replay.search import Replay

MISSED = 1.5
"""A search that found no very good configuration counts as if it had found one at this multiple of its budget."""
TOP_SHARE = 0.01


@dataclass(frozen=True)
class Outcome:
    """One simulated search, as far as a comparison needs it."""

    hit_h: float | None
    """Slot hours until a row of the best hundredth had finished. None: none did."""
    improved: tuple[tuple[float, float], ...]
    """Slot hours, and the regret from then on. Before the first, nothing has finished."""
    trials: int
    finished: int


def top_rows(table: CurveTable) -> list[int]:
    """The best hundredth of all rows, at least one."""
    return table.order[: max(1, round(TOP_SHARE * len(table.curves)))]


def outcome_of(table: CurveTable, found: Replay) -> Outcome:
    """The regret of a replay over its hours."""
    gain = table.objective.gain
    bar = min(gain(table.curves[row].values[-1]) for row in top_rows(table))
    best, hit, improved, finished = -math.inf, None, [], 0
    for epoch in found.epochs:
        if not epoch.finished or epoch.value is None:
            continue
        finished += 1
        if hit is None and gain(epoch.value) >= bar:
            hit = epoch.hours
        if gain(epoch.value) > best:
            best = gain(epoch.value)
            improved.append((epoch.hours, table.regret(epoch.value)))
    return Outcome(hit, tuple(improved), found.begun, finished)


def regret_at(table: CurveTable, outcome: Outcome, hours: float) -> float:
    """The regret after so many hours; before the first finished run, that of the worst value."""
    known = [regret for at, regret in outcome.improved if at <= hours]
    return known[-1] if known else table.regret(None)
