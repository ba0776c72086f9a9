"""``--objective``, ``--objectives``, ``--target``, ``--baseline`` and the constraints of a space: read and checked."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Iterable, Mapping

from bigbatch.base import json_values
from bigbatch.base.command_line import nearest_word
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import Constraint, StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.train_config import LOSSES
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.feasible import bounds_in_words
from bigbatch.tune.runs.objective import Reported, TimeToTarget
from bigbatch.tune.runs.objectives import DEFAULT_OBJECTIVE, WITHOUT_CLASSES, Objectives, read_objectives

OPTIONS = ("objective", "objectives", "target")
SAMPLES = 64


def one_of_objective_options(o: SearchOptions) -> str | None:
    """The name of the one option that is given; None if there is none. Raises ConfigError for two of them."""
    given = [name for name in OPTIONS if getattr(o, name) is not None]
    if len(given) > 1:
        words = " and ".join(f"--{name}" for name in given)
        raise ConfigError(f"a search has one of --objective, --objectives and --target; got {words}. Keep one of them.")
    if o.objective is not None and "," in o.objective:
        raise ConfigError(f"--objective names one metric; got {o.objective!r}. Write --objectives {o.objective}.")
    for name in given:
        text = getattr(o, name)
        if ("=" in text) != (name == "target"):
            fix = f"--target {text}" if "=" in text else "--target val_top1=0.759"
            what = "METRIC=VALUE" if name == "target" else "METRIC or METRIC:max or METRIC:min"
            raise ConfigError(f"--{name} takes {what}; got {text!r}. Write {fix}.")
    return given[0] if given else None


def with_studys_objective(o: SearchOptions, stored: Mapping[str, object]) -> SearchOptions:
    """The options of a resumed search, with the objective of its study if they name none."""
    text = json_values.text_or_none(stored, "objective")
    if text is None or one_of_objective_options(o):
        return o
    return dataclasses.replace(o, target=text) if "=" in text else dataclasses.replace(o, objectives=text)


def read_objective_options(o: SearchOptions, data: DataInfo, overrides: Mapping[str, object]) -> Objectives:
    """The search's objectives: without an option top-1, or the validation loss where targets are no classes.

    Raises ConfigError for an invalid one.
    """
    name = one_of_objective_options(o)
    text = getattr(o, name) if name else DEFAULT_OBJECTIVE if data.are_classes else WITHOUT_CLASSES
    loss = json_values.text(overrides, "loss", LOSSES[0])
    words = json_values.texts(overrides, "metrics")
    reported = Reported(data.num_classes if data.are_classes else 0, words, loss not in LOSSES)
    found = read_objectives(f"--{name or 'objective'}", text, reported)
    names = [each.reach.name if isinstance(each, TimeToTarget) else each.name for each in found.each]
    unknown = [each for each in names if each.endswith("_top1") and not data.are_classes]
    if unknown:
        raise ConfigError(
            f"--{name} {unknown[0]} needs targets that are classes, whole numbers; got others from data.name="
            f"{data.path}. Write --objective {WITHOUT_CLASSES}, or a metric of your own."
        )
    return found


def suited(o: SearchOptions, objectives: Objectives, strategy: str, stopping: str) -> tuple[str, str]:
    """The strategy and the stopping that suit these objectives, where ``auto`` leaves the choice; see ``resolved``.

    Raises ConfigError if what was asked for cannot work with them.
    """
    count, is_target = len(objectives.each), isinstance(objectives.first, TimeToTarget)
    if count > 1 and strategy == "curves":
        raise ConfigError(f"--strategy {strategy} optimises one objective; got {count}. Write --strategy tpe.")
    if count > 1 and o.stopping not in (None, "auto", "none"):
        raise ConfigError(
            f"--stopping {o.stopping} compares trials by one objective; got {count}. Write --stopping none."
        )
    if is_target and strategy == "curves":
        raise ConfigError(
            f"--strategy {strategy} models values, and a missed target has none; got --target. Write --strategy tpe."
        )
    if strategy == "auto" and (objectives.several or is_target or math.isnan(objectives.first.worst)):
        strategy = "tpe"  # the curve model needs one objective whose values have a scale
    if stopping == "auto" and is_target:
        stopping = "asha"
    # Optuna takes no reports in a study of several objectives (docs/decisions/027).
    return strategy, "none" if objectives.several else stopping


def constraints_in_words(space: Space, workload: Workload, pinned: Mapping[str, object]) -> tuple[str, ...]:
    """The constraints that samples of the space set.

    Raises ConfigError for a metric that does not exist.
    """
    rng, found = random.Random(0), {}
    for number in range(SAMPLES):
        trial = StandInTrial(rng, number=number)
        with contextlib.suppress(Exception, SystemExit):  # the space was checked; what it refuses, the search reports
            space(trial, workload, pinned)
            found.update({(name, bound.value is None): bound for name, bound in trial.constraints.items()})
    return tuple(_in_words(space, constraint) for constraint in found.values())


def _in_words(space: Space, constraint: Constraint) -> str:
    if constraint.value is not None:
        return f"{constraint.name} {bounds_in_words(constraint)}, known before a trial starts"
    metric = metrics.metric_named(f"set_constraint of space {space.name!r}", constraint.name)
    if not metric.name.endswith(metrics.COSTS):
        raise ConfigError(
            f"set_constraint of space {space.name!r} bounds what a trial costs; got {metric.name!r}, which training "
            "improves. Write e.g. set_constraint('epoch_s', at_most=60), or use --objectives."
        )
    return f"{metric.title} {bounds_in_words(constraint, metric)}, measured after each epoch"


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


def stated_baseline(objectives: Objectives, o: SearchOptions, stored: Mapping[str, object]) -> dict[str, float]:
    """What the user states: the option, else the resumed study. Raises ConfigError as ``given_baseline``."""
    kept = json_values.mapping(stored, metrics.BASELINE)
    values = {name: json_values.number_or_none(kept, name) for name in _improved(objectives)}
    return {name: value for name, value in values.items() if value is not None} | given_baseline(objectives, o.baseline)


def _improved(objectives: Objectives) -> list[str]:
    """The names of the objectives that training improves."""
    each = [one.name for one in objectives.each if not isinstance(one, TimeToTarget)]
    return [name for name in each if not name.endswith(metrics.COSTS)]
