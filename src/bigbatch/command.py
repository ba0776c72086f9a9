"""The console command ``bigbatch``: which file answers which of its commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from bigbatch import __version__
from bigbatch.base.command_line import DONE, INTERRUPTED, Commands, OneLineParser, run_command
from bigbatch.base.streams import reader_may_leave


def _main_of(module: str, function: str = "main", **keywords: object) -> Callable[[Sequence[str]], int]:
    """The function of a command, whose file is loaded when the command runs: most of them load much."""

    def run(argv: Sequence[str]) -> int:
        return int(getattr(importlib.import_module(f"bigbatch.{module}"), function)(argv, **keywords))

    return run


def _cluster(argv: Sequence[str]) -> int:
    from bigbatch.cluster.cli import cluster_main
    from bigbatch.tune.plan.arguments import tune_parser

    return cluster_main(argv, tune_parser)


def _version(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="bigbatch --version")
    parser.parse_args(argv)
    print(f"bigbatch {__version__}")
    return DONE


COMMANDS: Commands = {
    "tune": (_main_of("tune.commands.tune", "tune_main", prog="bigbatch tune"), "search hyperparameters"),
    "train": (_main_of("train_loop.launch.command"), "train one configuration in full"),
    "lr-find": (_main_of("train_loop.launch.lr_find"), "find a learning rate by a range test"),
    "pack": (_main_of("train_loop.data.packing.command"), "pack images into a few files that load fast"),
    "fetch": (_main_of("train_loop.data.packing.fetch"), "download a data set by name and pack it"),
    "cluster": (_cluster, "run searches on a Slurm cluster"),
    "studies": (
        _main_of("tune.commands.studies", "studies_main"),
        "list studies, or rank their trials under a cap of GPU hours",
    ),
    "show": (_main_of("tune.commands.show", "show_main"), "print one study, running or not"),
    "scale": (
        _main_of("tune.commands.scale", "scale_main"),
        "measure how far a configuration scales with more workers",
    ),
    "wandb-sync": (
        _main_of("tune.commands.wandb_sync", "wandb_sync_main"),
        "send offline W&B runs, also while the search runs",
    ),
    "export": (
        _main_of("tune.commands.export"),
        "copy a study for other tools: CSV, TensorBoard",
    ),
    "report": (_main_of("tune.commands.report", "report_main"), "write an HTML report of a study"),
    "--version": (_version, "print the version"),
}

ONLY_SHOW = ("studies", "show", "--version")
"""Commands that only print. If they cannot write their output, they have failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; 2 for a wrong command line."""
    words = sys.argv[1:] if argv is None else argv
    with reader_may_leave(ends=any(word in ONLY_SHOW for word in words[:1])):
        return run_command("bigbatch", COMMANDS, words)


def console(argv: Sequence[str] | None = None) -> int:
    """``main`` for a process of its own, which Ctrl-C ends at any time."""
    try:
        return main(argv)
    except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
        return INTERRUPTED
