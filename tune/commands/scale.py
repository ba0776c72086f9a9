"""``bigbatch scale``: measures how a configuration scales, and says where more workers are waste."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bigbatch.base.command_line import DONE, FAILED, WRONG_INPUT
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.tune.console.text import from_here
from bigbatch.tune.scaling.analysis import analyse
from bigbatch.tune.scaling.arguments import (
    check_started_alone,
    find_machine,
    known_epoch_s,
    make_scale_plan,
    scale_parser,
    write_plan,
    write_result_of,
)
from bigbatch.tune.scaling.measuring import measure_size
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan
from bigbatch.tune.scaling.scaling_table import (
    brief_seconds,
    cost_words,
    plan_lines,
    repeat_text,
    table_text,
    useful_text,
)
from bigbatch.tune.scaling.size_process import ScaleStopped, SizeFailed
from bigbatch.tune.scaling.size_result import SizeResult, read_sizes

PROG = "bigbatch scale"


def scale_main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0 done, 1 a size failed, 2 wrong input, 128 + the signal that stopped it."""
    args = scale_parser(PROG).parse_args(argv)
    try:
        return _scale(args)
    except (ConfigError, OwnCodeError) as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except SizeFailed as error:
        why = str(error).removesuffix(".")
        print(f"{PROG}: failed: {why}. Repeat the command to measure again what failed.", file=sys.stderr)
        return FAILED
    except (ScaleStopped, KeyboardInterrupt) as stop:
        print(f"stopped. To resume: {PROG} {shlex.join(argv)}", file=sys.stderr)
        # 2: SIGINT.
        return 128 + (stop.signum if isinstance(stop, ScaleStopped) else 2)


def _scale(args: argparse.Namespace) -> int:
    check_started_alone()
    plan = make_scale_plan(args, find_machine())
    sizes = read_sizes(plan.output)
    done = [one.workers for one in sizes]
    print("\n".join(plan_lines(plan, done, known_epoch_s(plan, sizes))), flush=True)
    if args.dry_run:
        return DONE
    write_plan(plan)
    failed = _measure_sizes(plan, [size for size in plan.sizes if size.workers not in done])
    if sizes := read_sizes(plan.output):
        found = analyse(sizes)
        path = write_result_of(plan, found)
        parts = [table_text(plan, found), repeat_text(plan), useful_text(found)]
        print("\n" + "\n\n".join([*parts, f"all numbers are in {from_here(path)}"]))
    if failed:
        raise SizeFailed("; ".join(failed))
    return DONE


def _measure_sizes(plan: ScalePlan, missing: Sequence[SizePlan]) -> list[str]:
    """Measure these sizes. Returns what the failed ones said: they cost the others nothing.

    After each size ``scaling.json`` has all that are finished.
    """
    failed = []
    for place, size in enumerate(missing, 1):
        print(f"\n{size.kind}", flush=True)
        try:
            print(f"  {_size_line(plan, measure_size(plan, size))}", flush=True)
        except SizeFailed as error:
            print(f"  {error}", flush=True)
            failed.append(str(error))
            continue
        sizes = read_sizes(plan.output)
        write_result_of(plan, analyse(sizes))
        left = [later.workers for later in missing[place:]]
        if left and plan.epochs:
            print(f"  left: {cost_words(plan, known_epoch_s(plan, sizes), left)}", flush=True)
    return failed


def _size_line(plan: ScalePlan, one: SizeResult) -> str:
    worth = f", {plan.objective.worth(one.objective)}" if one.objective is not None else ", diverged" * one.diverged
    return f"done: {one.images_per_s:,.0f} images/s, an epoch takes {brief_seconds(one.epoch_s)}{worth}"
