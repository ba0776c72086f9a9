"""The options of a search: ``bigbatch tune``. Standard library only, for login nodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from bigbatch.cluster.host.command_line import OneLineParser
from bigbatch.cluster.host.option_values import parse_port
from bigbatch.cluster.host.verbosity import add_verbosity
from bigbatch.train_loop.host.command_line import add_part_options
from bigbatch.train_loop.launch.wandb_mode import WANDB_MODES
from bigbatch.train_loop.progress import LOG_EVERY_STEPS
from bigbatch.tune.plan.holdout import parse_holdout


def tune_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of a search's options. ``prog``: the command's name, for usage and errors."""
    p = OneLineParser(
        prog=prog,
        description="Find the hyperparameters with which a large batch keeps its accuracy.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(p)
    _add_how(p)
    return p


def _add_what(p: argparse.ArgumentParser) -> None:
    """The options that say what is searched, and for how long."""
    add = p.add_argument
    add("--space", metavar="NAME|FILE.py[:fn]", help="large_batch (default), lr_warmup, smoke, or your own")
    _add_trainable(add)
    _add_data(add)
    add("--batch", metavar="B[,B…]", help="search these global batches only, e.g. 8192 or 2k,8k,32k (k = 1024)")
    add(
        "--holdout",
        type=parse_holdout,
        metavar="PART|none",
        help="the part of the validation images that reports and does not choose (default: half, if there are 200)",
    )
    _add_components(add)
    add(
        "--trials",
        type=int,
        metavar="N",
        help="how many trials to finish (default: the space's own number, else 16, or 12 on digits; with a budget: as "
        "many as it allows)",
    )
    add(
        "--max-epochs",
        type=int,
        metavar="N",
        help="epochs of a trial that is not stopped early (default: the space's own number, else 18, or 10 on digits)",
    )
    add(
        "--tolerance",
        metavar="T",
        help="the answer is the largest batch at most T worse than the best: 0.5pt (points, the default of an "
        "accuracy), 1%% (of the best value, the default of other metrics) or 0.02 (in the metric's unit)",
    )
    _add_objectives(add)
    add("--budget-gpu-hours", type=float, metavar="H", help="run trials until the study's jobs have cost H GPU hours")
    add("--time-budget", metavar="4h", help="run trials for this time; --resume continues the study")


def _add_data(add: Callable[..., object]) -> None:
    """The options that say what is trained on."""
    add(
        "--data",
        metavar="NAME|PATH|FILE.py:FN",
        help="digits (default), cifar10, …, a packed folder, an image folder, or data sets of your own",
    )
    add_part_options(add)


def _add_objectives(add: Callable[..., object]) -> None:
    """The options that say what is optimised."""
    add(
        "--objective",
        metavar="METRIC[:max|min]",
        help="what to optimise: any metric of an epoch (default: val_top1)",
    )
    add(
        "--metric",
        action="append",
        default=[],
        metavar="FILE.py:FN|torchmetrics/CLASS",
        help="report this metric of validation too, as val_FN; an --objective may name it",
    )
    add("--objectives", metavar="M:max,M:min,…", help="several, e.g. val_top1:max,gpu_hours:min; gives a Pareto front")
    add(
        "--baseline",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="what a constant prediction reaches (default: measured, but with --trainable it is not known)",
    )
    add("--target", metavar="METRIC=VALUE", help="reach this value in as few device hours as possible")


def _add_how(p: argparse.ArgumentParser) -> None:
    """The options that say how the search is carried out, and where its results go."""
    add = p.add_argument
    add("--strategy", metavar="NAME", help="auto (default), curves, tpe, gp, cmaes, qmc, random, FILE:FN")
    add("--stopping", metavar="NAME", help="auto (default), look, asha, hyperband, median, none, FILE:FN")
    add("--workers", type=int, metavar="N", help="data-parallel workers of each trial (default 1)")
    add("--set", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="fix a key of the configuration")
    add("--on-bad-image", metavar="fail|skip", help="what to do with an unreadable image (default: fail)")
    add(
        "--stage",
        metavar="DIR",
        help="copy a packed data set to this folder of each node and read the copy, e.g. '$TMPDIR'; none: no copy",
    )
    _add_first_trials(add)
    add("--prior-from", action="append", default=[], metavar="FILE", help="search around the rate in this lr_find.json")
    add("--find-lr", action="store_true", default=None, help="first make a range test of each optimizer's rate")
    add("--study", metavar="NAME", help="the study's folder in --output (default: named by space, data and time)")
    add("--output", metavar="DIR", help="the folder that holds the studies (default: runs)")
    add("--storage", metavar="URL", help="keep the study in this database, not in a journal file")
    add("--join", action="store_true", help="with --storage: work on a study on which other drivers work too")
    add("--resume", action="store_true", help="continue the study that --study names")
    add("--retry-failed", action="store_true", help="with --resume: repeat failed trials from their checkpoints")
    add(
        "--confirm",
        metavar="KxS|auto|none",
        help="train the K best of each batch again with S fresh seeds before one is called best "
        "(auto: the answer and the best, 1x3, if that costs little)",
    )
    add("--seed", type=int, metavar="S", help="seed of sampling, initial weights and data order (default 0)")
    add("--address", metavar="ADDR", help="local (default): start a private Ray; auto or HOST:PORT: join a running one")
    add("--wandb", metavar="MODE", help=WANDB_MODES)
    add("--wandb-watch", metavar="WHAT", help="with --wandb: histograms of gradients, parameters, or all")
    add("--log-every-steps", metavar="N|PART", help=f"{LOG_EVERY_STEPS}, in each trial's log and to W&B")
    add(
        "--metrics-port",
        type=parse_port,
        metavar="PORT",
        help="show gauges of the search to Prometheus at this port, where Ray asks for no token (default: nowhere)",
    )
    add("--no-check", action="store_true", help="do not first train two batches on the CPU with code of your own")
    add("--accept-changed-code", action="store_true", help="with --resume: go on although code of your own has changed")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add_verbosity(p, "print the answer and errors alone; lines about trials are in the study's logs/driver.log")


def _add_trainable(add: Callable[..., object]) -> None:
    """What trains in place of our own loop."""
    add(
        "--trainable",
        metavar="FILE.py:FUNCTION",
        help="a whole training function of your own, train(config, report, resume), in place of our training loop",
    )


def _add_components(add: Callable[..., object]) -> None:
    """The options that name components, built-in ones or the user's own."""
    add(
        "--model",
        metavar="NAME|FILE.py:fn",
        help="a torchvision network, timm/NAME, or your own (default: resnet50 for 5,000 images above 64 px on GPUs, "
        "else resnet18)",
    )
    add("--loss", metavar="NAME|FILE.py:fn", help="cross_entropy (default), bce, or your own")
    add("--optimizer", metavar="NAME|FILE.py:fn", help="search with this optimizer alone: sgd, lars, …, or your own")


def _add_first_trials(add: Callable[..., object]) -> None:
    """The options that name what is tried first."""
    add(
        "--enqueue",
        action="append",
        default=[],
        metavar="recipe:NAME|FILE|none",
        help="try this configuration first, scaled to each batch (default: published recipes that fit the space)",
    )
    add(
        "--warm-start",
        action="append",
        nargs="+",
        default=[],
        metavar="DIR",
        help="learn from the trials of these studies, e.g. runs/first; also of another batch, subset or network",
    )


def parse_options(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> dict[str, object]:
    """The fields of ``bigbatch.tune.plan.options.SearchOptions``."""
    args = vars(parser.parse_args(argv))
    args["set"] = tuple(text for group in args["set"] for text in group)
    args["warm_start"] = tuple(path for group in args["warm_start"] for path in group)
    args["metric"], args["baseline"] = tuple(args["metric"]), tuple(args["baseline"])
    args["prior_from"], args["enqueue"] = tuple(args["prior_from"]), tuple(args["enqueue"])
    return args
