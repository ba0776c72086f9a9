"""Code of a user's own in a search: ``--loss --optimizer``, or with ``--trainable`` a whole training function.

A search over components of the built-in loop checks two batches with them and keeps their fingerprints.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.base.command_line import empty_value
from bigbatch.search_spaces.trainable_space import RESERVED, TrainableSpace, load_trainable_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError, TrainConfig, json_or_word
from bigbatch.train_loop.config.own_names import (
    absolute,
    check_same_code,
    code_fingerprints,
    own_name,
    own_words,
)
from bigbatch.train_loop.config.rules import OPEN_SECTIONS, check_component, is_own, shown_name
from bigbatch.train_loop.config.sections import OPTIMIZERS
from bigbatch.train_loop.config.train_config import LOSSES as BUILT_IN_LOSSES
from bigbatch.train_loop.launch.checks import option_sections, takes_options, try_users_code
from bigbatch.train_loop.plugins.registry import check_call, load_function
from bigbatch.tune.plan.fitting import optimizers_of
from bigbatch.tune.plan.objective_options import one_of_objective_options
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Reported
from bigbatch.tune.runs.objectives import Objectives, read_objectives

if TYPE_CHECKING:
    from bigbatch.tune.plan.search_plan import SearchPlan

OWN_CODE = "own_code"
"""The key of study.json: component → fingerprint."""
DRAWS = 24
"""Configurations that are drawn from a space of the user's own to see which components it may choose."""
CHECKED = 4
"""At most this many combinations of components are tried with two batches."""


def with_components(overrides: Mapping[str, object], o: SearchOptions) -> dict[str, object]:
    """The fixed keys together with ``--loss`` and ``--optimizer``, with absolute paths of users' files.

    A loss of the user's own has no label smoothing, so that is fixed to 0. Raises ConfigError for a component that does
    not exist or is given twice, and for label smoothing with an own loss.
    """
    found = dict(overrides)
    for option, key, value in (("--loss", "loss", o.loss), ("--optimizer", "optimizer.name", o.optimizer)):
        if value is not None and key in overrides:
            raise ConfigError(f"a key is set once; got {option} and --set {key}. Keep {option}.")
        found |= {} if value is None else {key: value}
    for key, names in (("loss", BUILT_IN_LOSSES), ("optimizer.name", OPTIMIZERS)):
        if key in found:
            check_component(key, str(found[key]), names)
            found[key] = absolute(key, str(found[key]))
    if "loss" in found and found["loss"] not in BUILT_IN_LOSSES:
        TrainConfig(loss=str(found["loss"]), label_smoothing=json_values.number(found, "label_smoothing"))
        found["label_smoothing"] = 0.0
    return found


def own_code(plan: SearchPlan) -> dict[str, str]:
    """Fingerprints of the users' files that a search may use. Raises ConfigError for one that is not there."""
    search = (plan.strategy, plan.stopping)
    if plan.trainable:
        return code_fingerprints([plan.trainable, *search])
    texts = [plan.model, plan.data.path or "", *map(str, plan.overrides.values())]
    texts += [str(choice) for one in plan.ranges.values() for choice in one.choices]
    words = [word for config in _configurations(plan) for word in own_words(config).values()]
    return code_fingerprints([*words, *search, *(text for text in texts if is_own(text) and text.startswith("/"))])


def check_own_search(plan: SearchPlan) -> None:
    """Let a sampler and a pruner of the user's own be made, and the sampler propose.

    Raises ConfigError and OwnCodeError.
    """
    if not is_own(plan.strategy) and not is_own(plan.stopping):
        return
    from bigbatch.tune.models.protocol import dimensions_of  # they load Optuna
    from bigbatch.tune.proposers.own_strategy import check_own_strategy
    from bigbatch.tune.proposers.samplers import quiet_optuna

    quiet_optuna()
    # The frontier's value is chosen beside the user's sampler, which never sees that parameter.
    chosen_beside = plan.frontier.searched if plan.frontier else None
    dimensions = [one for one in dimensions_of(plan.ranges) if one.name != chosen_beside]
    check_own_strategy(plan.strategy, plan.stopping, dimensions, [each.direction for each in plan.objectives.each])


def check_components(plan: SearchPlan, stored: Mapping[str, object]) -> None:
    """Refuse changed code in a resumed study; train two batches on the CPU in a new one, or after a change.

    Raises ConfigError and OwnCodeError.
    """
    before, o = stored.get(OWN_CODE), plan.options
    if isinstance(before, dict):
        check_same_code(before, plan.own_code, "a study", o.accept_changed_code)
    if plan.trainable:  # nothing is known of its batches
        return
    _check_options_are_taken(plan)
    trained = plan.own_code.keys() - {plan.strategy, plan.stopping}
    if o.no_check or not trained or (stored and before == plan.own_code):
        return
    needs_top1 = any(objective.shown.name == "val_top1" for objective in plan.objectives.each)
    seen: list[str] = []
    for config in _configurations(plan):
        combination = json.dumps(own_words(config), sort_keys=True)
        if combination not in seen and len(seen) < CHECKED:
            seen.append(combination)
            try_users_code(config, plan.scan, needs_top1)


def _check_options_are_taken(plan: SearchPlan) -> None:
    """Raise ConfigError for ``--set loss_options.gamma=…`` and such where no configuration has a component for them."""
    prefixes = {key for key in OPEN_SECTIONS if any(name.startswith(f"{key}.") for name in plan.overrides)}
    if not prefixes - {"data.options"}:
        return
    configs = _configurations(plan)
    for number, (key, *_) in enumerate(option_sections(configs[0])):
        words = [option_sections(config)[number][2] for config in configs]
        if key in prefixes and not any(map(takes_options, words)):
            name = next(name for name in plan.overrides if name.startswith(f"{key}."))
            raise ConfigError(
                f"{key} are arguments of a function of your own; got --set {name}={plan.overrides[name]} with "
                f"{shown_name(words[0])}. Leave it out."
            )


def own_component_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's lines about users' files, and about the rates of an optimizer without published ones."""
    lines = [("own code", word) for word in plan.own_code if word != plan.trainable]
    own = [name for name in optimizers_of(plan.ranges) if is_own(name)]
    return lines + [
        ("rates", f"no published rates of {shown_name(name)} are known: the range is broad") for name in own
    ]


def _configurations(plan: SearchPlan) -> list[TrainConfig]:
    """The configurations of the initial points, and some that are drawn where the space may choose components."""
    points = plan.space.initial_points(plan.workload, plan.overrides) or [{}]
    trials = [StandInTrial(None, point) for point in points[:1]]
    # Built-in spaces choose no component of the user's by themselves.
    if plan.space.source != "built-in":
        trials += [StandInTrial(random.Random(seed), number=seed + 1) for seed in range(DRAWS)]
    return [plan.space(trial, plan.workload, plan.overrides) for trial in trials]


OPTION = "--trainable"
ARGUMENTS = ("config", "report", "resume")
OF_THE_LOOP = (
    "data", "subset", "val_part", "holdout", "batch", "model", "loss", "optimizer",
    "stage", "enqueue", "metric",
)  # fmt: skip
"""Options of our own training loop: the function brings its own data and network."""


def refuse_options_of_the_loop(o: SearchOptions) -> None:
    """Raise ConfigError for an option that has no meaning for a function that brings its data and network."""
    for name in OF_THE_LOOP:
        if getattr(o, name) not in (None, (), ""):
            raise ConfigError(
                f"--trainable brings its own data, network and optimizer; got --{name.replace('_', '-')} too, which is "
                "for BigBatch's training loop. Leave it out."
            )


def own_values(assignments: Iterable[str]) -> dict[str, object]:
    """``--set`` with ``--trainable``: values for ``config``, by the names that the function knows.

    Raises ConfigError for a text without ``=``, a name that is given twice, and a name with an option of its own.
    """
    found: dict[str, object] = {}
    for text in assignments:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set takes NAME=VALUE with --trainable; got {text!r}. Write e.g. --set width=64.")
        if not raw:
            raise ConfigError(empty_value(f"--set {name}=", raw))
        if name in RESERVED:
            raise ConfigError(f"{name} has its own option; got --set {text}. Write {RESERVED[name]} {raw}.")
        if name in found:
            raise ConfigError(f"a name is set once; got {name!r} twice. Keep one --set {name}=….")
        found[name] = json_or_word(raw)
    return found


def load_trainable(o: SearchOptions) -> TrainableSpace:
    """The space of a search over a function, both checked. Runs the user's files.

    Raises ConfigError: there is no such file or function, or it does not take (config, report, resume); there is no
    space of the user's own. Raises OwnCodeError if the function's file raises an exception.
    """
    word = str(o.trainable)
    name = str(own_name(OPTION, f"{word}:train" if word.endswith(".py") else word))
    check_call(OPTION, name, load_function(OPTION, name), ARGUMENTS, {})
    return load_trainable_space(o.space, name)


def read_own_objectives(o: SearchOptions) -> Objectives:
    """What the function's reports are judged by.

    Raises ConfigError without one, without a direction, and for an accuracy that our own loop counts.
    """
    option = one_of_objective_options(o)
    if option is None:
        raise ConfigError(
            "--trainable needs the name of what it reports, and which values are better; got no --objective. "
            "Write e.g. --objective accuracy:max or --objective loss:min."
        )
    found = read_objectives(f"--{option}", str(getattr(o, option)), Reported(own=None))
    for objective in found.each:
        if objective.shown.metric.is_proportion:
            raise ConfigError(
                f"--{option} {objective.shown.name} is an accuracy whose images BigBatch counts itself; got it with "
                "--trainable. Write e.g. --objective accuracy:max."
            )
    if not reported_names(found):
        raise ConfigError(
            f"--trainable needs an objective that the function reports; got {found.text}, which BigBatch measures. "
            "Write e.g. --objective accuracy:max."
        )
    return found


def reported_names(objectives: Objectives) -> tuple[str, ...]:
    """What each report of the function must have: the objectives, but for costs, which BigBatch measures itself."""
    names = (one.shown.name for one in objectives.each)
    return tuple(name for name in names if not name.endswith(metrics.COSTS))


def trainable_lines(space: object) -> list[tuple[str, str]]:
    """What the plan says of the function, in place of data and network."""
    if not isinstance(space, TrainableSpace):
        return []
    return [
        ("trainable", space.trainable),
        ("", "no options for batches or recipes: those are of BigBatch's own training loop"),
    ]
