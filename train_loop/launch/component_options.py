"""``--model --loss --optimizer --no-check`` of ``bigbatch train`` and ``lr-find``, and the configuration itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from bigbatch.train_loop.config import ConfigError, TrainConfig, parse_assignments
from bigbatch.train_loop.config.given import read_config, recipe_path
from bigbatch.train_loop.config.own_names import with_absolute_words
from bigbatch.train_loop.host.command_line import OneLineParser, with_parts
from bigbatch.train_loop.launch.checks import NO_CHECK

KEYS = {"--model": "model.name", "--loss": "loss", "--optimizer": "optimizer.name", "--data": "data.name"}
"""Options and the keys that they set."""


def add_source_options(p: OneLineParser) -> None:
    """``--config`` and ``--recipe``, of which one is needed where no component of one's own is named."""
    which = p.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="FILE", help="a search's best.json, or a TrainConfig as JSON")
    which.add_argument("--recipe", metavar="NAME", help="a published configuration: train_loop/recipes/NAME.json")


def add_component_options(p: OneLineParser) -> None:
    """The options that name components, and ``--no-check``."""
    p.add_argument("--model", metavar="NAME|FILE.py:fn", help="a torchvision network, timm/NAME, or your own")
    p.add_argument("--loss", metavar="NAME|FILE.py:fn", help="cross_entropy, bce, or your own")
    p.add_argument("--optimizer", metavar="NAME|FILE.py:fn", help="sgd, lars, lamb, adamw, or your own")
    p.add_argument("--no-check", action="store_true", help=NO_CHECK)


def read_source_config(
    p: OneLineParser, args: argparse.Namespace, more: Mapping[str, object]
) -> tuple[str, TrainConfig]:
    """The name and the configuration of ``--config`` or ``--recipe``, or the defaults, with all changes of the command.

    ``more``: further keys that options set; None: not given. Raises ConfigError; SystemExit(2) without any of them.
    """
    if args.config is None and args.recipe is None and not any((args.model, args.loss, args.optimizer)):
        p.error("the command needs one of --config, --recipe and --model; got none. Write e.g. --config best.json.")
    changes = with_parts(parse_assignments([text for group in args.set for text in group]), args.subset, args.val_part)
    given = {option: getattr(args, option.removeprefix("--")) for option in KEYS}
    for option, value in given.items():
        if value is not None and KEYS[option] in changes:
            raise ConfigError(f"a key is set once; got {option} and --set {KEYS[option]}. Keep {option}.")
        changes |= {} if value is None else {KEYS[option]: value}
    for key, value in more.items():
        if value is not None and key in changes:
            option = f"--{key.rpartition('.')[2].replace('_', '-')}"
            raise ConfigError(f"a key is set once; got {option} and --set {key}. Keep {option}.")
        changes |= {} if value is None else {key: value}
    if args.config is None and args.recipe is None:
        return "own", with_absolute_words(TrainConfig().replace_keys(changes))
    source = recipe_path(args.recipe) if args.recipe else Path(args.config)
    return source.stem, with_absolute_words(read_config(source).replace_keys(changes))
