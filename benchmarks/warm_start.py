"""What a warm start is worth, by replay: regret after 4, 8, 12 and 16 finished trials, without and with knowledge.

    python benchmarks/warm_start.py [--seeds 25] [--strategy curves] [--output benchmarks/results/warm_start.json]

A search over the two largest batches of a synthetic table knows 40 rows of its two smallest ones, with noise of 0.003:
as they are (``related``), or with reversed values (``reversed``). No early stopping, two slots. In
this measurement nothing is enqueued: only the model learns from the other study.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from invented_curves import invented_table
from replay.curves import CurveTable
from replay.search import replay
from store import store

from bigbatch.tune.models.protocol import SearchFacts, Strategy
from bigbatch.tune.runs.knowledge import Curve, KnownStudy
from bigbatch.tune.storage.description import provenance
from bigbatch.tune.strategies import make_strategy

BATCH, ROWS, KNOWN, NOISE, SLOTS, TRIALS = "global_batch_size", 300, 40, 0.003, 2, 16
AFTER = (4, 8, 12, 16)
ARMS = ("none", "related", "reversed")


def setting(family: str, seed: int) -> tuple[CurveTable, dict[str, tuple[KnownStudy, ...]]]:
    """A table of the two largest batches, and for each arm what is known from the two smallest ones."""
    whole = invented_table(family, seed, ROWS)
    batches = sorted({int(str(whole.params(row)[BATCH])) for row in range(ROWS)})
    small = rows_of(whole, BATCH, batches[:2])[:KNOWN]
    large = [whole.curves[row] for row in rows_of(whole, BATCH, batches[-2:])]
    known = {
        "none": (),
        "related": (known_rows(whole, small, NOISE),),
        "reversed": (known_rows(whole, small, NOISE, reversed_values=True),),
    }
    return replace(whole, curves=tuple(large), declared=whole.dimensions), known


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
    known = []
    for number, row in enumerate(rows):
        curve = table.curves[row]
        values = np.array(curve.values) + rng.normal(0, noise, len(curve.values))
        epochs = len(values) if curve.diverged and reversed_values else curve.epochs
        if epochs:
            shown = top - values if reversed_values else values
            gains = {epoch: table.objective.gain(value) for epoch, value in enumerate(shown.tolist(), 1)}
            known.append(Curve(number, curve.params, gains, epochs, curve.diverged and not reversed_values))
    return KnownStudy("reversed" if reversed_values else "related", tuple(known))


def rows_of(table: CurveTable, name: str, values: Sequence[object]) -> list[int]:
    """The rows whose parameter ``name`` has one of these values."""
    return [row for row in range(len(table.curves)) if table.params(row).get(name) in values]


def regrets(table: CurveTable, known: tuple[KnownStudy, ...], seed: int, strategy: str) -> list[float]:
    """The regret after each number of ``AFTER`` finished trials; after none, that of the worst row."""

    def make(facts: SearchFacts) -> Strategy:
        return make_strategy(strategy, "none", replace(facts, knowledge=known))

    found = replay(table, make, SLOTS, seed, math.inf, trials=TRIALS)
    best, after, gain = table.worst, list[float](), table.objective.gain
    for epoch in found.epochs:
        if epoch.finished and epoch.value is not None:
            best = max(best, epoch.value, key=gain)
            after.append(table.regret(best))
    after = after or [table.regret(best)]
    return [after[min(n, len(after)) - 1] for n in AFTER]


def measure(family: str, seeds: Sequence[int], strategy: str = "curves") -> dict[str, list[list[float]]]:
    """Arm → for each seed its regrets."""
    found: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for seed in seeds:
        table, known = setting(family, seed)
        for arm in ARMS:
            found[arm].append(regrets(table, known[arm], seed, strategy))
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=25, help="tables of each family (default 25)")
    p.add_argument("--families", nargs="+", default=["wide", "projected", "steps"])
    p.add_argument("--strategy", default="curves")
    p.add_argument("--output", type=Path, help="also write the JSON there")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    o = parse(argv)
    result: dict[str, Any] = {"benchmark": "warm_start", "after": AFTER, "strategy": o.strategy, "seeds": o.seeds}
    result["provenance"] = provenance()
    for family in o.families:
        found = measure(family, range(100, 100 + o.seeds), o.strategy)
        result[family] = {arm: np.round(each, 5).tolist() for arm, each in found.items()}
        for arm in ARMS:
            mean, median = np.mean(found[arm], 0), np.median(found[arm], 0)
            words = "  ".join(f"{100 * m:5.2f} ({100 * d:4.2f})" for m, d in zip(mean, median, strict=True))
            print(f"{family:10} {arm:9} {words}  points after {AFTER} finished trials: mean (median)")
    print(json.dumps(result))
    store(result, o.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
