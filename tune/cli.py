"""The command line: ``bigbatch tune …`` (the same as ``python tune/run.py …``) and ``bigbatch train …``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.command_line import Commands, run_command
from cluster.option_values import part
from cluster.streams import reader_may_leave
from train_loop.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser
from train_loop.config import ConfigError
from train_loop.disk_full import full_errno, words
from train_loop.errors import RayStartError


def tune_parser(prog: str) -> argparse.ArgumentParser:
    p = OneLineParser(
        prog=prog,
        description="Find the hyperparameters with which a large batch keeps its accuracy.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    add("--space", metavar="NAME|FILE.py[:fn]", help="large_batch (default), lr_warmup, smoke, or your own")
    add("--data", metavar="NAME|PATH", help="digits (default), cifar10, …, a packed folder, or an image folder")
    add("--subset", type=part, metavar="PART", help="train on so much of each class, e.g. 10%%; validation stays whole")
    add("--model", metavar="NAME", help="a torchvision network; default: resnet50 on GPUs, resnet18 without")
    add(
        "--trials",
        type=int,
        metavar="N",
        help="finished trials to reach (default: 16, 12 on digits, or what the space says)",
    )
    add("--max-epochs", type=int, metavar="N", help="epochs of a trial that is not stopped early")
    add("--budget-gpu-hours", type=float, metavar="H", help="stop when the workers have used so many hours")
    add("--time-budget", metavar="4h", help="stop after this time; the study can be resumed")
    add("--sampler", metavar="NAME", help="tpe (default), random, qmc, gp, cmaes")
    add("--scheduler", metavar="NAME", help="asha (default), hyperband, median, none")
    add("--workers", type=int, metavar="N", help="data-parallel workers of each trial (default 1)")
    add("--set", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="fix a key of the configuration")
    add("--on-bad-image", metavar="fail|skip", help="what an image that cannot be read does (default: fail)")
    add(
        "--stage",
        metavar="DIR",
        help="copy a packed data set there, once a node, and read that; e.g. '$TMPDIR'; or none",
    )
    add(
        "--prior-from", action="append", default=[], metavar="FILE", help="lr_find.json: its rate is the prior's centre"
    )
    add("--study", metavar="NAME", help="its folder under --output (default: space, data and time)")
    add("--output", metavar="DIR", help="where studies go (default: runs)")
    add("--storage", metavar="URL", help="a database for the study in place of the journal file")
    add("--resume", action="store_true", help="go on with --study where it was")
    add("--retry-failed", action="store_true", help="with --resume: try failed trials again, from their checkpoints")
    add("--seed", type=int, metavar="S", help="of sampling, initial weights and data order (default 0)")
    add("--address", metavar="ADDR", help="local (default): an own Ray; auto or HOST:PORT: one that runs already")
    add("--wandb", metavar="MODE", help="disabled (default), offline, online")
    add("--dry-run", action="store_true", help="print the plan and end")
    return p


def parse_options(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> dict[str, object]:
    """The fields of ``tune.plan.Options``."""
    args = vars(parser.parse_args(argv))
    args["set"] = tuple(text for group in args["set"] for text in group)
    args["prior_from"] = tuple(args["prior_from"])
    return args


def tune_main(argv: Sequence[str] | None = None, prog: str = "tune/run.py") -> int:
    """Run a search. Returns the exit code: 0, 1 (failed), 2 (wrong input), 130 (Ctrl-C), 143 (SIGTERM)."""
    with reader_may_leave():
        args = parse_options(tune_parser(prog), argv)
        return _guarded(prog, lambda: _search(args))


def _search(args: dict[str, object]) -> int:
    from tune.plan import Options, make_plan
    from tune.storage_url import check_url

    plan = make_plan(Options(**args))  # type: ignore[arg-type]
    check_url(plan.storage)
    from tune.search import run_search

    return run_search(plan)


def train_main(argv: Sequence[str] | None = None) -> int:
    from train_loop.run import main

    return main(list(argv) if argv is not None else None)


def pack_main(argv: Sequence[str]) -> int:
    from train_loop.data.pack import main

    return main(argv)


def fetch_main(argv: Sequence[str]) -> int:
    from train_loop.data.fetch import main

    return main(argv)


def lr_find_main(argv: Sequence[str] | None = None) -> int:
    from train_loop.lr_find import main

    return main(list(argv) if argv is not None else None)


def _cluster_main(argv: Sequence[str]) -> int:
    from cluster.cli import cluster_main

    return cluster_main(argv)


def _guarded(prog: str, run: Callable[[], int]) -> int:
    """What is not a defect of ours in one line: wrong input, a missing installation, Ctrl-C before the start."""
    try:
        return run()
    except ConfigError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("tune", "train_loop", "search_spaces", "cluster"):
            raise
        print(
            f"{prog}: error: a package that BigBatch needs is missing; got no {error.name!r}. "
            "Run: pip install -e . (in the repository)",
            file=sys.stderr,
        )
    except OSError as error:
        number = full_errno(error)
        if number is None:
            raise
        folder = Path(error.filename).parent if isinstance(error.filename, str) else Path.cwd()
        print(f"{prog}: failed: {words(number, folder)}. Make room there.", file=sys.stderr)
        return 1
    except RayStartError as error:
        print(f"{prog}: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted before anything was started", file=sys.stderr)
        return INTERRUPTED
    return WRONG_INPUT


COMMANDS: Commands = {
    "tune": (lambda argv: tune_main(argv, prog="bigbatch tune"), "search hyperparameters"),
    "train": (train_main, "train one configuration in full"),
    "lr-find": (lr_find_main, "learning-rate range test of a configuration"),
    "pack": (pack_main, "pack images into a few files that load fast"),
    "fetch": (fetch_main, "download a data set by name and pack it"),
    "cluster": (_cluster_main, "run searches on a Slurm cluster"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The console command ``bigbatch``."""
    with reader_may_leave():
        return run_command("bigbatch", COMMANDS, sys.argv[1:] if argv is None else argv)
