"""The options of a search as one table: ``bigbatch tune``. Standard library only, for login nodes.

``--help`` prints the groups but the last one, ``--help-all`` every group. What an option's value must be is checked
where the plan is made; ``options.py`` holds the values.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.host.command_line import add_part_options
from bigbatch.train_loop.launch.wandb_run import WANDB_MODES
from bigbatch.tune.plan.holdout import parse_holdout

FIRST, TRAINED, BEST, SEARCHED, RUN, RARE = (
    "first of all", "what is trained", "what counts as best", "how the search goes on", "how and where it runs",
    "rarely needed",
)  # fmt: skip
FLAG: dict[str, Any] = {"action": "store_true"}
MANY: dict[str, Any] = {"action": "append", "default": []}
LISTS: dict[str, Any] = {**MANY, "nargs": "+"}


class Option(NamedTuple):
    """One option. ``settings``: further arguments of ``add_argument``, e.g. its parser as ``type``."""

    name: str
    group: str
    metavar: str | None
    help: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


OPTIONS = (
    Option("space", FIRST, "NAME|FILE.py[:fn]", "large_batch (default), lr_warmup, smoke, or your own"),
    Option("data", FIRST, "NAME|PATH|FILE.py:FN", "digits (default), cifar10, …, a packed folder, an image folder, or "
           "data sets of your own"),
    Option("model", FIRST, "NAME|FILE.py:fn", "a torchvision network, timm/NAME, or your own (default: resnet50 for "
           "5,000 images above 64 px on GPUs, else resnet18)"),
    Option("batch", FIRST, "B[,B…]", "search these global batches only, e.g. 8192 or 2k,8k,32k (k = 1024)"),
    Option("trials", FIRST, "N", "how many trials to finish (default: the space's own number, else 16, or 12 on "
           "digits; with a budget: as many as it allows)", {"type": int}),
    Option("max-epochs", FIRST, "N", "epochs of a trial that is not stopped early (default: the space's own number, "
           "else 18, or 8 on digits)", {"type": int}),
    Option("budget-gpu-hours", FIRST, "H", "run trials until the study's jobs have cost H GPU hours", {"type": float}),
    Option("time-budget", FIRST, "4h", "run trials for this time; --resume continues the study"),
    Option("study", FIRST, "NAME", "the study's folder in --output (default: named by space, data and time)"),
    Option("resume", FIRST, None, "continue the study that --study names", FLAG),
    Option("trainable", TRAINED, "FILE.py:FUNCTION", "a whole training function of your own, train(config, report, "
           "resume), in place of our training loop"),
    Option("loss", TRAINED, "NAME|FILE.py:fn", "cross_entropy (default), bce, or your own"),
    Option("optimizer", TRAINED, "NAME|FILE.py:fn", "search with this optimizer alone: sgd, lars, …, or your own"),
    Option("set", TRAINED, "KEY=VALUE", "fix a key of the configuration", LISTS),
    Option("holdout", TRAINED, "PART|none", "the part of the validation images that reports and does not choose "
           "(default: half, if there are 200)", {"type": parse_holdout}),
    Option("metric", TRAINED, "FILE.py:FN|torchmetrics/CLASS", "report this metric of validation too, as val_FN; an "
           "--objective may name it", MANY),
    Option("objective", BEST, "METRIC[:max|min]", "what to optimise: any metric of an epoch (default: val_top1)"),
    Option("objectives", BEST, "M:max,M:min,…", "several, e.g. val_top1:max,gpu_hours:min; gives a Pareto front"),
    Option("target", BEST, "METRIC=VALUE", "reach this value in as few device hours as possible"),
    Option("tolerance", BEST, "T", "the answer is the largest batch at most T worse than the best: 0.5pt (points, the "
           "default of an accuracy), 1%% (of the best value, the default of other metrics) or 0.02 (in the metric's "
           "unit)"),
    Option("confirm", BEST, "KxS|auto|none", "train the K best of each batch again with S fresh seeds before one is "
           "called best (auto: the answer and the best, 1x3, if that costs little)"),
    Option("strategy", SEARCHED, "NAME", "auto (default), curves, tpe, qmc, random, FILE:FN"),
    Option("stopping", SEARCHED, "NAME", "auto (default), look, asha, median, none, FILE:FN"),
    Option("enqueue", SEARCHED, "recipe:NAME|FILE|none", "try this configuration first, scaled to each batch (default: "
           "published recipes that fit the space)", MANY),
    Option("warm-start", SEARCHED, "DIR", "learn from the trials of these studies, e.g. runs/first; also of another "
           "batch, subset or network", LISTS),
    Option("seed", SEARCHED, "S", "seed of sampling, initial weights and data order (default 0)", {"type": int}),
    Option("workers", RUN, "N", "data-parallel workers of each trial (default 1)", {"type": int}),
    Option("trials-per-gpu", RUN, "auto|N", "trials that share each GPU: 1 (default) to 4; auto: as many as have room "
           "by the records of the first ones"),
    Option("output", RUN, "DIR", "the folder that holds the studies (default: runs)"),
    Option("storage", RUN, "URL", "keep the study in this database, not in a journal file"),
    Option("retry-failed", RARE, None, "with --resume: repeat failed trials from their checkpoints", FLAG),
    Option("address", RUN, "ADDR", "local (default): start a private Ray; auto or HOST:PORT: join a running one"),
    Option("wandb", RUN, "MODE", WANDB_MODES),
    Option("dry-run", RUN, None, "print the plan and stop", FLAG),
    Option("stage", RARE, "DIR", "copy a packed data set to this folder of each node and read the copy, e.g. "
           "'$TMPDIR'; none: no copy"),
    Option("baseline", RARE, "METRIC=VALUE", "what a constant prediction reaches (default: measured, but with "
           "--trainable it is not known)", MANY),
    Option("join", RARE, None, "with --storage: work on a study on which other drivers work too", FLAG),
    Option("no-check", RARE, None, "do not first train two batches on the CPU with code of your own", FLAG),
    Option("accept-changed-code", RARE, None, "with --resume: go on although code of your own has changed", FLAG),
)  # fmt: skip


def tune_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of a search's options. ``prog``: the command's name, for usage and errors."""
    parser = OneLineParser(
        prog=prog,
        usage="%(prog)s [OPTION …]",
        description="Find the hyperparameters with which a large batch keeps its accuracy.",
        add_help=False,
    )
    names = (FIRST, TRAINED, BEST, SEARCHED, RUN, RARE)
    groups = {name: parser.add_argument_group(name) for name in names}
    for option in OPTIONS:
        settings = option.settings if option.metavar is None else {**option.settings, "metavar": option.metavar}
        shown = argparse.SUPPRESS if option.group == RARE else option.help
        groups[option.group].add_argument(f"--{option.name}", help=shown, **settings)
    add_part_options(groups[TRAINED].add_argument)
    quiet = "print the answer and errors alone; lines about trials are in the study's logs/driver.log"
    groups[RUN].add_argument("--quiet", action="store_true", help=quiet)
    groups[RUN].add_argument("-h", "--help", action="help", help="print this, without what is rarely needed")
    groups[RUN].add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help="print all")
    return parser


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the help with what is rarely needed."""
        texts = {option.name.replace("-", "_"): option.help for option in OPTIONS}
        for action in parser._actions:
            action.help = texts.get(action.dest, action.help)
        parser.print_help()
        parser.exit()


def parse_options(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> dict[str, object]:
    """The fields of ``bigbatch.tune.plan.options.SearchOptions``."""
    args = vars(parser.parse_args(argv))
    for option in OPTIONS:
        name = option.name.replace("-", "_")
        if option.settings is LISTS:
            args[name] = tuple(text for group in args[name] for text in group)
        elif option.settings is MANY:
            args[name] = tuple(args[name])
    return args
