"""``bigbatch scale``: measures how a configuration scales, and says where more workers are waste."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bigbatch.base.command_line import DONE, FAILED, WRONG_INPUT
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.tune.scaling.scale_plan import find_machine, make_scale_plan, scale_parser
from bigbatch.tune.scaling.scaling_table import plan_lines, read_sizes, table_text, useful_text
from bigbatch.tune.scaling.size_process import ScaleStopped, SizeFailed, train_size

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
        print(f"{PROG}: failed: {error}. Repeat the command to measure again what failed.", file=sys.stderr)
        return FAILED
    except (ScaleStopped, KeyboardInterrupt) as stop:
        print(f"stopped. To resume: {PROG} {shlex.join(argv)}", file=sys.stderr)
        # 2: SIGINT.
        return 128 + (stop.signum if isinstance(stop, ScaleStopped) else 2)


def _scale(args: argparse.Namespace) -> int:
    plan = make_scale_plan(args, find_machine())
    done = [one.workers for one in read_sizes(plan.output)]
    print("\n".join(plan_lines(plan, done)), flush=True)
    if args.dry_run:
        return DONE
    failed = []
    for size in plan.sizes:
        if size.workers not in done:
            try:
                train_size(plan, size)
            except SizeFailed as error:  # it costs the others nothing
                failed.append(str(error))
    if sizes := read_sizes(plan.output):
        print(f"\n{table_text(plan.machine, sizes)}\n\n{useful_text(sizes)}")
    if failed:
        raise SizeFailed("; ".join(failed))
    return DONE
