"""``bigbatch race FOLDER …``: ranks trials and full runs under a cap. Only reads, also while they train."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bigbatch.cluster.host.atomic_files import write_text
from bigbatch.cluster.host.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.host.command_line import check_page
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.objectives import DEFAULT_OBJECTIVE
from bigbatch.tune.watch.race import RaceCap, race_text, ranked_runs
from bigbatch.tune.watch.race_page import race_page
from bigbatch.tune.watch.race_runs import find_runs
from bigbatch.tune.watch.studies_command import said_in_one_line

MOST_PLACES = 20


def race_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch race``."""
    p = OneLineParser(
        prog="bigbatch race",
        description="Rank trials and full runs by their objective under a cap of device hours or time.",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="studies, folders of bigbatch train, or folders of them: runs/*")
    add(
        "--cap-gpu-hours",
        type=float,
        metavar="H",
        help="workers × hours that a run may use; without GPUs of CPU workers",
    )
    add("--cap-time", metavar="T", help="time that a run may take, e.g. 4h or 90m")
    add("--objective", metavar="METRIC", help="what decides, e.g. val_loss:min (default: the studies' own)")
    add("--html", metavar="FILE", help="write the race as one HTML file, with curves")
    add("--all", action="store_true", help=f"print every run, not only {MOST_PLACES}")
    return p


def race_main(argv: Sequence[str]) -> int:
    """Print the race. Returns the exit code."""
    args = race_parser().parse_args(argv)
    return said_in_one_line("bigbatch race", lambda: _race(args))


def _race(args: argparse.Namespace) -> None:
    cap = _cap(args)
    if args.html is not None:
        check_page("--html", Path(args.html))
    runs, found = find_runs([Path(folder) for folder in args.folders], _left_out)
    if not runs:
        raise ConfigError(
            f"a race needs a trial or a full run with a finished epoch; got none in {', '.join(args.folders)}. "
            "Write folders of bigbatch tune or bigbatch train."
        )
    objective = _objective(args.objective, found)
    places = ranked_runs(runs, objective, cap)
    print(race_text(places, objective, cap, None if args.all else MOST_PLACES))
    if args.html is not None:
        try:
            write_text(Path(args.html), race_page(places, objective, cap))
        except OSError as error:
            raise ConfigError(
                f"--html must be a file that can be written; got {args.html!r} ({error.strerror}). Write another."
            ) from None
        print(f"\nwrote {args.html}")


def _left_out(why: str) -> None:
    print(f"left out: {why}", file=sys.stderr, flush=True)


def _cap(args: argparse.Namespace) -> RaceCap:
    from bigbatch.tune.plan.option_checks import parse_duration

    hours = args.cap_gpu_hours
    if hours is not None and not 0 < hours < math.inf:
        raise ConfigError(f"--cap-gpu-hours must be more than 0 and finite; got {hours:g}. Write e.g. 4.")
    return RaceCap(hours, None if args.cap_time is None else parse_duration(args.cap_time, "--cap-time"))


def _objective(given: str | None, found: set[str]) -> Objective:
    """What decides. Raises ConfigError if the studies' objectives differ, or no epoch has such a value."""
    from bigbatch.tune.study.metrics import GPU_HOURS
    from bigbatch.tune.study.objective import Reported, read_objective

    if given is None and len(found) > 1:
        raise ConfigError(
            f"a race has one objective; the studies have {', '.join(sorted(found))}. Write --objective with one."
        )
    text = given or next(iter(found), DEFAULT_OBJECTIVE)
    objective = read_objective("--objective", text, Reported(1, None))
    if objective.name == GPU_HOURS:
        raise ConfigError(f"--objective is what a run learns; got {text!r}. Cap it instead: --cap-gpu-hours H.")
    return objective
