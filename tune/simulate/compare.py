"""Compares strategies over many seeds: hours until a very good configuration has finished, and regret over hours."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from bigbatch.tune.simulate.curves import CurveTable
from bigbatch.tune.simulate.replay import Replay, replay
from bigbatch.tune.strategies.named import make_strategy
from bigbatch.tune.strategies.protocol import SearchFacts, Strategy

QUANTILES = (0.1, 0.5, 0.9)
MISSED = 1.5
"""A search that found no very good configuration counts as if it had found one at this multiple of its budget."""


@dataclass(frozen=True)
class Arm:
    """What is compared: a strategy, a stopping, and a number of slots."""

    strategy: str
    stopping: str
    slots: int

    @property
    def label(self) -> str:
        """E.g. ``tpe + asha, 8 slots``."""
        stopping = "" if self.stopping == "none" else f" + {self.stopping}"
        return f"{self.strategy}{stopping}, {self.slots} slot{'s' * (self.slots > 1)}"


@dataclass(frozen=True)
class Setting:
    """What all searches of a comparison share."""

    table: CurveTable
    budget_h: float
    trials: int | None
    resume_s: float


@dataclass(frozen=True)
class Outcome:
    """One simulated search, as far as a comparison needs it."""

    hit_h: float | None
    """Slot hours until a row of the best hundredth had finished. None: none did."""
    improved: tuple[tuple[float, float], ...]
    """Slot hours, and the regret from then on. Before the first, nothing has finished."""
    trials: int
    finished: int
    decision_ms: float


def outcome_of(table: CurveTable, found: Replay) -> Outcome:
    """The regret of a replay over its hours."""
    gain, bar = table.objective.gain, min(table.objective.gain(_final(table, row)) for row in table.top)
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
    mean_ms = 1000 * float(np.mean(found.decision_s)) if found.decision_s else 0.0
    begun = len({e.trial for e in found.epochs}) if found.begun is None else found.begun
    return Outcome(hit, tuple(improved), begun, finished, mean_ms)


def _final(table: CurveTable, row: int) -> float:
    final = table.curves[row].final
    assert final is not None
    return final


def run_arm(setting: Setting, arm: Arm, seed: int) -> Replay:
    """One simulated search."""

    def make(facts: SearchFacts) -> Strategy:
        return make_strategy(arm.strategy, arm.stopping, facts)

    table, budget_h = setting.table, setting.budget_h
    return replay(table, make, arm.slots, seed, budget_h, trials=setting.trials, resume_s=setting.resume_s)


def run_all(setting: Setting, arms: Sequence[Arm], seeds: int, processes: int = 1) -> Iterator[tuple[Arm, int, Replay]]:
    """Every arm with every seed, in order. With several processes, as many searches at a time."""
    jobs = [(arm, seed) for arm in arms for seed in range(seeds)]
    if processes == 1:
        for arm, seed in jobs:
            yield arm, seed, run_arm(setting, arm, seed)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_arm, setting, arm, seed) for arm, seed in jobs]
        for (arm, seed), future in zip(jobs, waiting, strict=True):
            yield arm, seed, future.result()


def regret_at(table: CurveTable, outcome: Outcome, hours: float) -> float:
    """The regret after so many hours; before the first finished run, that of the worst value."""
    known = [regret for at, regret in outcome.improved if at <= hours]
    return known[-1] if known else table.regret(None)


def regret_bands(table: CurveTable, outcomes: Sequence[Outcome], hours: Sequence[float]) -> np.ndarray:
    """QUANTILES of the regret over the seeds. Shape: quantiles × hours."""
    values = np.array([[regret_at(table, outcome, hour) for hour in hours] for outcome in outcomes])
    return np.quantile(values, QUANTILES, axis=0)


def median_hit_h(outcomes: Sequence[Outcome], budget_h: float) -> float:
    """Median hours of the hits; a miss counts MISSED × the budget."""
    return float(np.median([MISSED * budget_h if o.hit_h is None else o.hit_h for o in outcomes]))


def table_lines(setting: Setting, found: Mapping[Arm, Sequence[Outcome]]) -> list[str]:
    """The comparison as lines of text; regret in points where all values are shares."""
    table, budget = setting.table, setting.budget_h
    points, parts = unit_of(table), (0.25, 0.5, 1.0)
    heads = ["search", "top 1 % after", "missed", *(f"regret at {budget * part:.3g} h" for part in parts), "runs", "ms"]
    rows = [heads]
    for arm, outcomes in found.items():
        hit, missed = median_hit_h(outcomes, budget), sum(o.hit_h is None for o in outcomes)
        bands = regret_bands(table, outcomes, [budget * part for part in parts]) * points
        cells = [f"{mid:.2f} ({low:.2f} … {high:.2f})" for low, mid, high in bands.T]
        hit_text = f"> {budget:.3g} h" if hit > budget else f"{hit:.3g} h"
        runs = f"{np.mean([o.finished for o in outcomes]):.0f} of {np.mean([o.trials for o in outcomes]):.0f}"
        ms = f"{np.mean([o.decision_ms for o in outcomes]):.1f}"
        rows.append([arm.label, hit_text, f"{missed} of {len(outcomes)}", *cells, runs, ms])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def unit_of(table: CurveTable) -> float:
    """100 if all values are shares, which then are given in points; else 1."""
    return 100.0 if all(0 <= v <= 1 for curve in table.curves for v in curve.values) else 1.0
