"""``KEY=VALUE`` as people type it: ``--set lr=0.1``."""

from __future__ import annotations

import contextlib
import json
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping

from bigbatch.base.command_line import empty_value
from bigbatch.base.option_values import parse_fraction
from bigbatch.train_loop.config.own_options import is_open
from bigbatch.train_loop.config.rules import ConfigError, ConflictError
from bigbatch.train_loop.config.train_config import TrainConfig, coerced, config_keys, known_key, resolve_key

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
    # JSON makes a number of a name such as 8.
    if kind is str and not isinstance(value, str):
        value = raw
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if full in PARTS and isinstance(value, str):
        with contextlib.suppress(ArgumentTypeError):
            value = parse_fraction(value)
    return coerced(kind, value, name)


def json_or_word(raw: str) -> object:
    """A value that somebody typed: JSON, or a word."""
    try:
        return json.loads(raw)
    except ValueError:  # also of a number of more than 4,300 digits
        return _number_or_word(raw)


def check_each(changes: Mapping[str, object]) -> None:
    """Raise ConfigError for the first key whose value is invalid whatever the other keys are.

    What derives other values from these, as search spaces do, would else meet the error, and name another key.
    """
    for key, value in changes.items():
        with contextlib.suppress(ConflictError):
            TrainConfig().replace_keys({key: value})


def _number_or_word(raw: str) -> float | str:
    """JSON knows neither ``.3`` nor ``1.``; people type them."""
    try:
        return float(raw)
    except ValueError:
        return raw
