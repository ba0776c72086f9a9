"""Rows of a table as if another study had tried them: to measure what ``--warm-start`` is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bigbatch.tune.simulate.curves import CurveTable
from bigbatch.tune.study.knowledge import KnownStudy, KnownTrial


def known_rows(
    table: CurveTable, rows: Sequence[int], noise: float = 0.0, *, reversed_values: bool = False
) -> KnownStudy:
    """A study that has tried these rows.

    Args:
        noise: standard deviation of what is added to every value.
        reversed_values: the best row has the worst values, and a diverged one the best: the study misleads.
    """
    rng = np.random.default_rng(0)
    top = max(max(table.curves[row].values, default=0.0) for row in rows)
    trials = []
    for number, row in enumerate(rows):
        curve = table.curves[row]
        values = np.array(curve.values) + rng.normal(0, noise, len(curve.values))
        epochs = len(values) if curve.diverged and reversed_values else curve.epochs
        if epochs:
            shown = top - values if reversed_values else values
            known = dict(enumerate(shown.tolist(), 1))
            trials.append(KnownTrial(number, curve.params, known, epochs, curve.diverged and not reversed_values))
    return KnownStudy("reversed" if reversed_values else "related", tuple(trials))


def rows_of(table: CurveTable, name: str, values: Sequence[object]) -> list[int]:
    """The rows whose parameter ``name`` has one of these values."""
    return [row for row in range(len(table.curves)) if table.params(row).get(name) in values]
