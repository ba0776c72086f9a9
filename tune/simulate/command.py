"""``bigbatch simulate``: replays strategies over recorded curves, before anything is paid."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.cluster.host.command_line import DONE, INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError

if TYPE_CHECKING:
    from bigbatch.tune.simulate.compare import Arm, Outcome, Setting
    from bigbatch.tune.simulate.replay import Replay
    from bigbatch.tune.study.objective import Direction

BUDGET_RUNS = 40
"""Default budget: as many mean runs."""
FEW_RUNS = 60
PLOT, RAW = "regret.svg", "epochs.parquet"


def simulate_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch simulate``."""
    p = OneLineParser(
        prog="bigbatch simulate",
        description="Replay search strategies over recorded learning curves, and compare them with random search.",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("--curves", nargs="+", required=True, metavar="FILE", help="curves as .parquet or .jsonl, or studies' folders")
    add("--strategy", nargs="+", default=["auto"], metavar="NAME", help="strategies to compare, as in bigbatch tune")
    add("--stopping", nargs="+", default=["auto"], metavar="NAME", help="early stopping: one for all, or one for each")
    add("--slots", nargs="+", type=int, default=[8], metavar="N", help="trials at a time; several are compared (8)")
    add("--seeds", type=int, default=20, metavar="N", help="simulated searches for each (20)")
    add("--budget-hours", type=float, metavar="H", help=f"slot hours of a search ({BUDGET_RUNS} mean runs)")
    add("--trials", type=int, metavar="N", help="configurations that a search tries at most (all rows)")
    add("--task", metavar="NAME", help="the task to take from a file that holds several")
    add("--without", nargs="+", default=[], metavar="NAME", help="leave out parameters that follow from others")
    add("--minimize", action="store_true", help="smaller values are better")
    add("--epoch-seconds", type=float, metavar="S", help="replay as if a mean epoch took so long (as recorded)")
    add("--resume-seconds", type=float, default=10.0, metavar="S", help="what continuing a paused trial costs (10)")
    add("--processes", type=int, default=1, metavar="N", help="simulated searches at the same time (1)")
    add("--output", type=Path, metavar="FOLDER", help=f"write {PLOT} and {RAW} there")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate. Returns the exit code: 0, 2 (wrong input), 130 (Ctrl-C)."""
    args = simulate_parser().parse_args(argv)
    try:
        _check(args)
        _simulate(args)
    except ConfigError as error:
        print(f"bigbatch simulate: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("bigbatch simulate: interrupted", file=sys.stderr)
        return INTERRUPTED
    return DONE


def _check(args: argparse.Namespace) -> None:
    from bigbatch.tune.strategies.names import STOPPINGS, STRATEGIES

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
    if not 0 <= args.resume_seconds < math.inf:
        raise ConfigError(
            f"--resume-seconds must not be negative or infinite; got {args.resume_seconds}. Write e.g. 10."
        )
    if args.output is not None:
        try:
            args.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--output must be a folder that can be written; got {str(args.output)!r} ({error.strerror}). "
                "Write another."
            ) from None


def _simulate(args: argparse.Namespace) -> None:
    from bigbatch.tune.simulate.compare import outcome_of, run_all, table_lines

    setting = _setting(args)
    table = setting.table
    diverged = sum(curve.diverged for curve in table.curves)
    names = ", ".join(dimension.name for dimension in table.dimensions)
    print(f"{table.name}: {len(table.curves)} runs ({diverged} diverged), searched over {names}; ", end="")
    print(f"a mean run {table.run_s / 3600:.3g} h, best value {table.best:.4g}; budget {setting.budget_h:.3g} h")
    if len(table.curves) < FEW_RUNS:
        print(f"note: {len(table.curves)} runs are few: random search looks better than it is (docs/simulate.md)")
    for slots in args.slots:
        if slots * table.run_s > 3600 * setting.budget_h:
            print(f"note: {setting.budget_h:.3g} h over {slots} slots end before a mean run does: raise --budget-hours")
    arms = _arms(args)
    found: dict[Arm, list[Outcome]] = {arm: [] for arm in arms}
    raw: list[tuple[Arm, int, Replay]] = []
    for arm, seed, replayed in run_all(setting, arms, args.seeds, min(args.processes, os.cpu_count() or 1)):
        found[arm].append(outcome_of(table, replayed))
        if args.output is not None:
            raw.append((arm, seed, replayed))
    print("\n".join(table_lines(setting, found)))
    if args.output is not None:
        _write(args.output, setting, found, raw)


def _setting(args: argparse.Namespace) -> Setting:
    from bigbatch.tune.simulate.compare import Setting
    from bigbatch.tune.simulate.readers import read_curves

    direction: Direction = "minimize" if args.minimize else "maximize"
    table = read_curves([Path(path) for path in args.curves], direction, args.task).without(args.without)
    if args.epoch_seconds is not None:
        table = table.at_epoch_s(args.epoch_seconds)
    all_h = table.run_s * len(table.curves) / 3600
    budget_h = min(BUDGET_RUNS * table.run_s / 3600, all_h) if args.budget_hours is None else args.budget_hours
    return Setting(table, budget_h, args.trials, args.resume_seconds)


def _arms(args: argparse.Namespace) -> list[Arm]:
    """Random search without stopping first, then what was asked for, with each number of slots."""
    from bigbatch.tune.simulate.compare import Arm

    stoppings = args.stopping * (len(args.strategy) if len(args.stopping) == 1 else 1)
    pairs = [("random", "none"), *zip(args.strategy, stoppings, strict=True)]
    return list(dict.fromkeys(Arm(strategy, stopping, slots) for strategy, stopping in pairs for slots in args.slots))


def _write(
    folder: Path, setting: Setting, found: dict[Arm, list[Outcome]], raw: Sequence[tuple[Arm, int, Replay]]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bigbatch.tune.simulate.compare import regret_bands, unit_of
    from bigbatch.tune.simulate.plot import hours_axis, regret_svg

    table, hours, scale = setting.table, hours_axis(setting.budget_h), unit_of(setting.table)
    bands = {arm.label: regret_bands(table, outcomes, hours) * scale for arm, outcomes in found.items()}
    unit = "points" if scale == 100 else "units of the value"
    (folder / PLOT).write_text(regret_svg(table.name, unit, hours, bands), encoding="utf-8")
    rows = [
        {
            "strategy": arm.strategy,
            "stopping": arm.stopping,
            "slots": arm.slots,
            "seed": seed,
            "hours": epoch.hours,
            "trial": epoch.trial,
            "parameters": json.dumps(epoch.parameters, sort_keys=True),
            "value": epoch.value,
            "finished": epoch.finished,
        }
        for arm, seed, replayed in raw
        for epoch in replayed.epochs
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / RAW)
    print(f"wrote {folder / PLOT} and {folder / RAW}")
