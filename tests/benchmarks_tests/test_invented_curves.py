"""Invented landscapes: they are what their description says, and the same in every process."""

import numpy as np
import pytest
from invented_curves import invented_table
from replay.curves import RecordedCurve
from scipy.stats import spearmanr


def rate(params: RecordedCurve) -> float:
    return float(str(params.params.get("peak_lr", params.params.get("lr_multiplier"))))


@pytest.mark.parametrize("family", ["wide", "projected", "steps"])
def test_a_family_has_divergence_noise_and_curves_that_cross(family: str) -> None:
    tables = [invented_table(family, seed) for seed in range(6)]
    assert len({table.best for table in tables}) == 6
    assert tables[2].curves == invented_table(family, 2).curves
    crossed = 0
    for table in tables:
        for row in range(len(table.curves)):
            params = table.params(row)
            assert params == dict(table.curves[row].params)
            assert list(params) == [d.name for d in table.dimensions if d.is_active(params)]
            assert all(
                d.distribution._contains(d.distribution.to_internal_repr(params[d.name]))
                for d in table.dimensions
                if d.name in params
            )
        ends = [c for c in table.curves if not c.diverged]
        assert all(table.worst * 0.9 <= v <= 1 for c in table.curves for v in c.values)
        better = sorted(ends, key=lambda c: c.values[-1])[len(ends) // 2 :]
        early = [c.values[max(0, round(0.1 * c.epochs) - 1)] for c in better]
        crossed += spearmanr(early, [c.final for c in better]).statistic < 0.8
    assert crossed >= 3, "among the better half, early values say little about the end"
    diverged = [(rate(c), c.diverged) for table in tables for c in table.curves]
    rates = {flag: np.median([r for r, d in diverged if d is flag]) for flag in (True, False)}
    assert rates[True] > 2 * rates[False], "high rates diverge"


def test_runs_of_steps_diverge_late_too_and_jump_where_the_rate_drops() -> None:
    table = invented_table("steps", 0)
    lives = [len(c.values) / c.epochs for c in table.curves if c.diverged]
    assert max(lives) > 0.3, "not in the warmup alone"
    jumps = []
    for c in table.curves:
        drop = max(1, round(float(str(c.params["drop_at"])) * c.epochs))
        if not c.diverged and drop < c.epochs - 1:
            steps = np.diff(c.values)
            jumps.append(steps[drop - 1 : drop + 1].max() - np.median(steps))
    assert np.mean(np.array(jumps) > 0.01) > 0.4
