"""The console command ``bigbatch``: which file answers which of its commands. Runs on Python 3.9."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bigbatch.cluster.host import hidden_libraries
from bigbatch.cluster.host.command_line import INTERRUPTED, WRONG_INPUT, Commands, run_command
from bigbatch.cluster.host.streams import over, reader_may_leave


def _tune(argv: Sequence[str]) -> int:
    from bigbatch.tune.cli import tune_main

    return tune_main(argv, prog="bigbatch tune")


def _train(argv: Sequence[str]) -> int:
    from bigbatch.train_loop.launch.command import main

    return main(argv)


def _lr_find(argv: Sequence[str]) -> int:
    from bigbatch.train_loop.launch.lr_find import main

    return main(argv)


def _pack(argv: Sequence[str]) -> int:
    from bigbatch.train_loop.data.packing.command import main

    return main(argv)


def _fetch(argv: Sequence[str]) -> int:
    from bigbatch.train_loop.data.packing.fetch import main

    return main(argv)


def _cluster(argv: Sequence[str]) -> int:
    from bigbatch.cluster.cli import cluster_main
    from bigbatch.tune.plan.arguments import tune_parser

    return cluster_main(argv, tune_parser)


COMMANDS: Commands = {
    "tune": (_tune, "search hyperparameters"),
    "train": (_train, "train one configuration in full"),
    "lr-find": (_lr_find, "find a learning rate by a range test"),
    "pack": (_pack, "pack images into a few files that load fast"),
    "fetch": (_fetch, "download a data set by name and pack it"),
    "cluster": (_cluster, "run searches on a Slurm cluster"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; 2 for a wrong command line."""
    with reader_may_leave():
        return run_command("bigbatch", COMMANDS, sys.argv[1:] if argv is None else argv)


def console(argv: Sequence[str] | None = None) -> int:
    """``main`` for a process of its own: names files that hide our libraries, and ends by Ctrl-C at any time."""
    line = hidden_libraries.refusal()
    if line:
        print(f"bigbatch: error: {line}", file=sys.stderr)
        return WRONG_INPUT
    try:
        return over(main(argv))
    except KeyboardInterrupt:  # Ctrl-C while Python still reads its files
        return INTERRUPTED
