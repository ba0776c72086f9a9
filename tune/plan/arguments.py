"""The options of a search: ``bigbatch tune``. Standard library only, for login nodes; runs on Python 3.9."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bigbatch.cluster.host.command_line import OneLineParser
from bigbatch.cluster.host.option_values import part


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
    """The fields of ``bigbatch.tune.plan.checked_plan.Options``."""
    args = vars(parser.parse_args(argv))
    args["set"] = tuple(text for group in args["set"] for text in group)
    args["prior_from"] = tuple(args["prior_from"])
    return args
