"""Options of ``bigbatch train`` and ``lr-find``: the configuration, its components, what is measured. No torch here.

``--config --recipe``, ``--model --loss --optimizer --no-check``, ``--profile-steps`` and ``--torch-profiler``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.command_line import OneLineParser
from bigbatch.train_loop.config import ConfigError, TrainConfig, parse_assignments
from bigbatch.train_loop.config.given import config_source, read_config, recipe_path
from bigbatch.train_loop.config.own_names import with_absolute_words
from bigbatch.train_loop.host.command_line import with_options, with_parts
from bigbatch.train_loop.host.ranks import Launch
from bigbatch.train_loop.launch.checks import NO_CHECK

KEYS = {"--model": "model.name", "--loss": "loss", "--optimizer": "optimizer.name", "--data": "data.name"}
"""Options and the keys that they set."""


def add_source_options(p: OneLineParser) -> None:
    """``--config`` and ``--recipe``. One of them is needed unless a component is named."""
    which = p.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="FILE", help="a search's best.json, its study's folder, or a TrainConfig")
    which.add_argument("--recipe", metavar="NAME", help="a published configuration: train_loop/recipes/NAME.json")


def add_component_options(p: OneLineParser) -> None:
    """The options that name components, and ``--no-check``."""
    p.add_argument("--model", metavar="NAME|FILE.py:fn", help="a torchvision network, timm/NAME, or your own")
    p.add_argument("--loss", metavar="NAME|FILE.py:fn", help="cross_entropy, bce, or your own")
    p.add_argument("--optimizer", metavar="NAME|FILE.py:fn", help="sgd, lars, lamb, adamw, or your own")
    p.add_argument("--no-check", action="store_true", help=NO_CHECK)


def read_source_config(
    p: OneLineParser, args: argparse.Namespace, more: Mapping[str, tuple[str, object]]
) -> tuple[str, TrainConfig]:
    """The name and the configuration of ``--config`` or ``--recipe``, or the defaults, with all changes of the command.

    ``more``: as for ``with_options``. Raises ConfigError; SystemExit(2) without any of them.
    """
    if args.config is None and args.recipe is None and not any((args.model, args.loss, args.optimizer)):
        p.error("the command needs one of --config, --recipe and --model; got none. Write e.g. --config best.json.")
    changes = with_parts(parse_assignments([text for group in args.set for text in group]), args.subset, args.val_part)
    given = {option: (key, getattr(args, option.removeprefix("--"))) for option, key in KEYS.items()}
    changes = with_options(changes, {**given, **more})
    if args.config is None and args.recipe is None:
        return "own", with_absolute_words(TrainConfig().replace_keys(changes))
    source = recipe_path(args.recipe) if args.recipe else config_source(args.config)
    return source.stem, with_absolute_words(read_config(source).replace_keys(changes))


PROFILES_FILE = "profile.jsonl"
"""In the output folder: a line for each profile."""


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured in place of training."""

    steps: int
    trace_folder: Path | None
    """Where torch's profiler writes a trace of further steps; None: no trace."""


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a profile."""
    add = parser.add_argument
    add(
        "--profile-steps",
        type=int,
        metavar="N",
        help="measure each phase of N steps and validation; print what bounds the run and what it would take; stop",
    )
    add(
        "--torch-profiler",
        metavar="DIR",
        help="with --profile-steps: also write a trace of ten further steps here, for Perfetto or TensorBoard",
    )


def read_profile_options(args: argparse.Namespace, workers: int, launch: Launch | None) -> ProfileOptions | None:
    """The checked options; None if nothing is to be measured. Raises ConfigError."""
    steps, folder = args.profile_steps, args.torch_profiler
    if steps is None:
        if folder is not None:
            raise ConfigError(
                "--torch-profiler traces steps of a profile; got no --profile-steps. Write --profile-steps 50 as well."
            )
        return None
    if steps < 1:
        raise ConfigError(f"--profile-steps must be at least 1; got {steps}. Write --profile-steps 50.")
    if launch is None and workers > 1:
        raise ConfigError(
            f"--profile-steps measures one worker, or those of torchrun or srun; got --workers {workers}. "
            f"Start it with torchrun --nproc-per-node {workers} train_loop/run.py … and leave --workers out."
        )
    return ProfileOptions(steps, Path(folder).absolute() if folder is not None else None)
