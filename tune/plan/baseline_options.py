"""``--baseline`` and a space's ``BASELINE``: what a constant prediction reaches, as the user states it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bigbatch.base import json_values
from bigbatch.base.command_line import nearest_word
from bigbatch.search_spaces.registry import Space
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.target import TimeToTarget


def read_baseline(texts: Iterable[str]) -> dict[str, float]:
    """``acc=0.1,loss=2.3``, or ``0.1`` for the only objective → value by metric, which is empty for that one.

    Raises ConfigError for what is no finite number, and a metric that is named twice.
    """
    found: dict[str, float] = {}
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        name, equals, number = (part.strip() for part in text.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or bool(name) != bool(equals):
            raise ConfigError(f"--baseline takes METRIC=VALUE, a finite number; got {text!r}. Write e.g. acc=0.1.")
        if name in found:
            raise ConfigError(f"--baseline names each metric once; got {name or 'two numbers'}. Keep one of them.")
        found[name] = value
    return found


def given_baseline(objectives: Objectives, texts: Iterable[str]) -> dict[str, float]:
    """``read_baseline`` by the names of the objectives. Raises ConfigError, also for a metric that is none of them."""
    given, names = read_baseline(texts), _improved(objectives)
    for name, value in given.items():
        if not names:
            raise ConfigError(
                f"--baseline is of an objective that training improves; got {objectives.text}. Leave it out."
            )
        if name not in names and (name or max(len(names), len(given)) > 1):
            near = nearest_word(name, names) or names[0]
            raise ConfigError(
                f"--baseline names an objective, {' or '.join(names)}; got {name or f'{value:g} alone'!r}. Write "
                f"--baseline {near}={value:g}."
            )
        name = name or names[0]
        if name.endswith("_top1") and not 0 <= value <= 1:
            raise ConfigError(f"--baseline of {name} is a fraction from 0 to 1; got {value:g}. Write e.g. {name}=0.1.")
    return {name or names[0]: value for name, value in given.items()}


def stated_baseline(
    objectives: Objectives, space: Space, o: SearchOptions, stored: Mapping[str, object]
) -> dict[str, float]:
    """What the user states: the option, else the resumed study, else the space's file, which may name other metrics.

    Raises ConfigError as ``given_baseline``, and for what the file seems to have mistyped.
    """
    names, kept = _improved(objectives), json_values.mapping(stored, metrics.BASELINE)
    of_space = {name or (names[0] if len(names) == 1 else ""): value for name, value in space.baseline.items()}
    for name in of_space.keys() - set(names):
        near = nearest_word(name, set(names) - of_space.keys())
        if near or (not name and names):
            raise ConfigError(
                f"BASELINE of space {space.name!r} is by metric, here {' or '.join(names)}; got "
                f"{repr(name) if name else 'one number'}. Write e.g. BASELINE = {{{near or names[0]!r}: 0.1}}."
            )
    known = {name: value for name in names if (value := json_values.number_or_none(kept, name)) is not None}
    known = {name: value for name, value in of_space.items() if name in names} | known
    return known | given_baseline(objectives, o.baseline)


def _improved(objectives: Objectives) -> list[str]:
    """The names of the objectives that training improves."""
    each = [one.name for one in objectives.each if not isinstance(one, TimeToTarget)]
    return [name for name in each if not name.endswith(metrics.COSTS)]
