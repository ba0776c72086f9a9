"""``bigbatch simulate``: replays strategies over recorded curves, before anything is paid."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.command_line import INTERRUPTED, OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.wrapped import aligned, said_in_one_line

if TYPE_CHECKING:
    from bigbatch.tune.models.protocol import SearchFacts, Strategy
    from bigbatch.tune.runs.objective import Direction
    from bigbatch.tune.simulate.curves import CurveTable
    from bigbatch.tune.simulate.replay import Replay

BUDGET_RUNS = 40
"""Default budget: as many mean runs."""
FEW_RUNS = 60
PARTS = (0.25, 0.5, 1.0)
"""Of the budget: when a search's regret is told."""


@dataclass(frozen=True)
class Search:
    """What is simulated with each seed."""

    strategy: str
    stopping: str
    slots: int
    budget_h: float
    trials: int | None

    @property
    def label(self) -> str:
        """E.g. ``tpe + asha, 8 slots``."""
        stopping = "" if self.stopping == "none" else f" + {self.stopping}"
        return f"{self.strategy}{stopping}, {self.slots} slot{'s' * (self.slots > 1)}"


def simulate_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch simulate``."""
    p = OneLineParser(
        prog="bigbatch simulate",
        description="Replay search strategies over recorded learning curves, and compare them with random search.",
    )
    add = p.add_argument
    add("--curves", nargs="+", required=True, metavar="FILE", help="studies' folders, or curves as .jsonl")
    add("--strategy", nargs="+", default=["auto"], metavar="NAME", help="strategies to compare, as in bigbatch tune")
    add("--stopping", nargs="+", default=["auto"], metavar="NAME", help="early stopping: one for all, or one for each")
    add("--slots", nargs="+", type=int, default=[8], metavar="N", help="trials at a time; several are compared (8)")
    add("--seeds", type=int, default=20, metavar="N", help="simulated searches for each (20)")
    add("--budget-hours", type=float, metavar="H", help=f"slot hours of a search ({BUDGET_RUNS} mean runs)")
    add("--trials", type=int, metavar="N", help="configurations that a search tries at most (all rows)")
    add("--without", nargs="+", default=[], metavar="NAME", help="leave out parameters that follow from others")
    add("--minimize", action="store_true", help="smaller values are better")
    add("--epoch-seconds", type=float, metavar="S", help="replay as if a mean epoch took so long (as recorded)")
    add("--processes", type=int, default=1, metavar="N", help="simulated searches at the same time (1)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate. Returns the exit code: 0, 2 (wrong input), 130 (Ctrl-C)."""
    args = simulate_parser().parse_args(argv)
    try:
        return said_in_one_line("bigbatch simulate", lambda: _simulate(args))
    except KeyboardInterrupt:
        print("bigbatch simulate: interrupted", file=sys.stderr)
        return INTERRUPTED


def _check(args: argparse.Namespace) -> None:
    from bigbatch.tune.models.names import STOPPINGS, STRATEGIES

    for option, given, known in (("strategy", args.strategy, STRATEGIES), ("stopping", args.stopping, STOPPINGS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"--{option} must be one of {', '.join(known)}; got {name!r}. Write one of them.")
    if len(args.stopping) not in (1, len(args.strategy)):
        raise ConfigError(
            f"--stopping takes one name, or one for each of the {len(args.strategy)} strategies; "
            f"got {len(args.stopping)}. Write one."
        )
    for option in ("seeds", "trials", "budget_hours", "epoch_seconds", "processes"):
        value = getattr(args, option)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(
                f"--{option.replace('_', '-')} must be more than 0 and finite; got {value}. Write e.g. 8."
            )
    if min(args.slots) < 1:
        raise ConfigError(f"--slots must be at least 1; got {min(args.slots)}. Write e.g. 8.")


def _simulate(args: argparse.Namespace) -> None:
    _check(args)
    from bigbatch.tune.simulate.readers import read_curves

    direction: Direction = "minimize" if args.minimize else "maximize"
    table = read_curves([Path(path) for path in args.curves], direction).without(args.without)
    if args.epoch_seconds is not None:
        table = table.at_epoch_s(args.epoch_seconds)
    budget_h = args.budget_hours or min(BUDGET_RUNS, len(table.curves)) * table.run_s / 3600
    diverged = sum(curve.diverged for curve in table.curves)
    names = ", ".join(dimension.name for dimension in table.dimensions)
    print(f"{table.name}: {len(table.curves)} runs ({diverged} diverged), searched over {names}; ", end="")
    print(f"a mean run {table.run_s / 3600:.3g} h, best value {table.best:.4g}; budget {budget_h:.3g} h")
    if len(table.curves) < FEW_RUNS:
        print(f"note: {len(table.curves)} runs are few: random search looks better than it is (docs/simulate.md)")
    for slots in args.slots:
        if slots * table.run_s > 3600 * budget_h:
            print(f"note: {budget_h:.3g} h over {slots} slots end before a mean run does: raise --budget-hours")
    stoppings = args.stopping * (len(args.strategy) if len(args.stopping) == 1 else 1)
    pairs = [("random", "none"), *zip(args.strategy, stoppings, strict=True)]
    searches = [Search(*pair, slots, budget_h, args.trials) for pair in pairs for slots in args.slots]
    found: dict[Search, list[Replay]] = {search: [] for search in searches}
    for search, replayed in _replays(table, list(found), args.seeds, min(args.processes, os.cpu_count() or 1)):
        found[search].append(replayed)
    print("\n".join(_lines(table, found, budget_h)))


def _replay(table: CurveTable, search: Search, seed: int) -> Replay:
    from bigbatch.tune.simulate.replay import replay
    from bigbatch.tune.strategies import make_strategy

    def make(facts: SearchFacts) -> Strategy:
        return make_strategy(search.strategy, search.stopping, facts)

    return replay(table, make, search.slots, seed, search.budget_h, trials=search.trials)


def _replays(
    table: CurveTable, searches: Sequence[Search], seeds: int, processes: int
) -> Iterator[tuple[Search, Replay]]:
    """Every search with every seed, in order. With several processes, as many at a time."""
    jobs = [(search, seed) for search in searches for seed in range(seeds)]
    if processes == 1:
        yield from ((search, _replay(table, search, seed)) for search, seed in jobs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [(search, pool.submit(_replay, table, search, seed)) for search, seed in jobs]
        yield from ((search, future.result()) for search, future in waiting)


def _lines(table: CurveTable, found: Mapping[Search, Sequence[Replay]], budget_h: float) -> list[str]:
    """The comparison as lines of text: the regret at parts of the budget, its median and 10 to 90 % of the seeds."""
    import numpy as np

    rows = [["search", *(f"regret at {budget_h * part:.3g} h" for part in PARTS), "runs"]]
    for search, replays in found.items():
        cells = []
        for part in PARTS:
            regrets = [table.regret(_best_by(table, replayed, part * budget_h)) for replayed in replays]
            low, mid, high = np.quantile(regrets, (0.1, 0.5, 0.9)) * table.scale
            cells.append(f"{mid:.2f} ({low:.2f} … {high:.2f})")
        finished = np.mean([sum(epoch.finished for epoch in replayed.epochs) for replayed in replays])
        rows.append([search.label, *cells, f"{finished:.0f} of {np.mean([r.begun for r in replays]):.0f}"])
    return aligned(rows).splitlines()


def _best_by(table: CurveTable, replayed: Replay, hours: float) -> float | None:
    """The best value of the runs that had finished by then; None before the first."""
    done = [epoch.value for epoch in replayed.epochs if epoch.finished and epoch.hours <= hours]
    return table.objective.best([value for value in done if value is not None])
