"""Configurations as people give them: in a file, as a published recipe, as ``KEY=VALUE`` (``--set lr=0.1``). No torch.

A recipe is ``train_loop/recipes/NAME.json``: a whole TrainConfig beside where it is from. The file holds ``source``
and ``url``; ``expected`` (``top1`` in percent, null where nobody published it, and under which conditions); ``cost``
(images, optimizer steps, and A100 hours derived from a published throughput); ``chosen_by_us`` (keys that the source,
as far as it could be read, leaves open); ``differs`` (what our training does otherwise); ``config``.
"""

from __future__ import annotations

import contextlib
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from pathlib import Path

from bigbatch.base.command_line import did_you_mean, empty_value, parse_fraction
from bigbatch.base.json_values import written_json
from bigbatch.base.root import ROOT
from bigbatch.train_loop.config.rules import ConfigError, ConflictError, coerced, is_open, pythons_own
from bigbatch.train_loop.config.train_config import TrainConfig, config_keys, known_key, resolve_key, value_at

USABLE = "usable"
"""False in the best.json of a search that has no usable answer."""


BECAUSE = {"nothing_learned": "nothing has learned", "indistinct": "no run can be told apart from another"}
"""Why a search has none, by ``unusable_because`` of its frontier.json."""


def unusable_config(config: Mapping[str, object], because: str) -> dict[str, object]:
    """The content of such a best.json: ``read_config`` refuses it."""
    return {USABLE: False, "because": because, "config": dict(config)}


def config_source(text: str) -> Path:
    """The file that ``--config`` names; a study's folder stands for its best.json. Raises ConfigError."""
    path = Path(text).expanduser()
    if not os.path.isdir(path):  # also a path in a folder without access: its reader reports that
        return path
    if not os.path.exists(path / "best.json"):
        raise ConfigError(
            f"--config takes a file, or a study's folder with best.json; got {text!r} without one. Wait for the "
            "study's first finished trial, or name a file."
        )
    return path / "best.json"


def read_config(path: Path) -> TrainConfig:
    """The TrainConfig in a file: its whole content, or its value ``config`` (best.json).

    Raises ConfigError if the file holds none, or that of a search without a usable answer, or that of a whole training
    function, which our loop cannot train.
    """
    try:
        text: bytes | str = path.read_bytes()
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"--config must be a readable file; got {str(path)!r} ({reason}). Check the path.") from None
    try:
        values = written_json(text)
    except ValueError:  # also of a number of more than 4,300 digits
        values = None
    if isinstance(values, dict) and values.get(USABLE) is False:
        raise ConfigError(
            f"a configuration must be worth training; {str(path)!r} is from a search in which "
            f"{BECAUSE.get(str(values.get('because')), 'nothing is recommended')}. Search on, with more epochs or "
            "steps; or copy its value config into a file of its own to train it all the same."
        )
    if isinstance(values, dict) and "config" in values:
        text = json.dumps(values["config"])
    try:
        config = TrainConfig.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if config.trainable.name:
        raise ConfigError(
            f"--config is for BigBatch's training loop; {str(path)!r} holds that of {config.trainable.name}. Call that "
            "function with trainable.options, or search on with bigbatch tune --trainable."
        )
    return config


FOLDER = ROOT / "train_loop" / "recipes"


def recipe_names() -> list[str]:
    """The names that ``--recipe`` takes, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def recipe_path(name: str) -> Path:
    """The recipe's file, which ``--config`` takes too. Raises ConfigError, with the nearest name."""
    if name in recipe_names():
        return FOLDER / f"{name}.json"
    hint = did_you_mean(name, recipe_names())
    raise ConfigError(f"--recipe must be the name of a published configuration; got {name!r}. {hint}")


PARTS = ("data.subset", "data.val_part", "data.holdout")
"""Keys that take ``10%`` too."""


def parse_assignments(assignments: Iterable[str]) -> dict[str, object]:
    """``["epochs=30", "schedule.name=poly"]`` → {"epochs": 30, "schedule.name": "poly"}.

    Values are read as JSON and, failing that, as words. Raises ConfigError for a missing ``=``,
    an unknown key, or a key that is given twice.
    """
    changes, others = split_assignments(assignments)
    for name in others:
        resolve_key(name)  # raises
    return changes


def split_assignments(assignments: Iterable[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Like ``parse_assignments``, but returns unknown names and their values in a second dict."""
    changes: dict[str, object] = {}
    others: dict[str, object] = {}
    for text in assignments:
        name, equals, raw = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set takes key=value; got {text!r}. Write e.g. --set lr=0.1.")
        if not raw.strip():
            raise ConfigError(empty_value(f"--set {name}=", raw))
        full = known_key(name)
        if (full or name) in changes | others:
            raise ConfigError(f"a key is set once; got {full or name!r} twice. Keep one --set {full or name}=….")
        if full is None:
            others[name] = json_or_word(raw)
        else:
            changes[full] = _value(raw, name, full)
    return changes, others


def _value(raw: str, name: str, full: str) -> object:
    """The text that was typed for the key ``full``, called ``name``, as the key's type."""
    value = json_or_word(raw)
    if is_open(full):
        return value
    kind = config_keys()[full]
    # JSON would read a name such as 8 as a number.
    if kind is str and not isinstance(value, str):
        value = raw
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if full in PARTS and isinstance(value, str):
        with contextlib.suppress(ArgumentTypeError):
            value = parse_fraction(value)
    return coerced(kind, value, name, value_at(TrainConfig(), full))


PYTHONS = {"True": True, "False": False, "None": None}
"""Python's own words. As words of a user's option, ``False`` and ``None`` would count as true."""


def json_or_word(raw: str) -> object:
    """A value that somebody typed: JSON, one of ``PYTHONS``, or a word."""
    # JSON knows neither .3 nor 1., which people type; a number of more than 4,300 digits is a ValueError, too.
    for read in (json.loads, float):
        with contextlib.suppress(ValueError):
            return read(raw)
    return PYTHONS.get(raw.strip(), raw)


def check_each(changes: Mapping[str, object]) -> None:
    """Raise ConfigError for the first key whose value is invalid whatever the other keys are.

    Otherwise code that derives values from these, such as a search space, would raise the error and name another key.
    """
    for key, value in changes.items():
        with contextlib.suppress(ConflictError):
            TrainConfig().replace_keys({key: value})


def written_assignments(changes: Mapping[str, object]) -> list[str]:
    """``KEY=VALUE`` for each, which ``split_assignments`` reads as the same value; a word as one types it."""
    words = {
        value for value in changes.values() if isinstance(value, str) and json_or_word(value) == value.strip() != ""
    }
    return [
        f"{key}={value if isinstance(value, str) and value in words else json.dumps(value, default=_plain)}"
        for key, value in changes.items()
    ]


def _plain(value: object) -> object:
    own = pythons_own(value)
    return str(value) if own is value else own
