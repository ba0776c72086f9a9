"""Components of a user's own in a search: ``--loss --optimizer``, their fingerprints, and the check of two batches."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bigbatch.search_spaces.priors import OWN_SPREAD, is_component_name
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.own_names import absolute, check_same_code, code_fingerprints, own_words
from bigbatch.train_loop.config.plug_ins import LOSSES, OPTIMIZERS_GROUP, check_component, is_own, shown_name
from bigbatch.train_loop.config.rules import OPEN_SECTIONS
from bigbatch.train_loop.config.sections import OPTIMIZERS
from bigbatch.train_loop.config.train_config import LOSSES as BUILT_IN_LOSSES
from bigbatch.train_loop.launch.checks import option_sections, takes_options, try_users_code
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.prior import optimizers_of

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
    built_in = {"loss": (BUILT_IN_LOSSES, LOSSES), "optimizer.name": (OPTIMIZERS, OPTIMIZERS_GROUP)}
    for key, (names, group) in built_in.items():
        if key in found:
            check_component(key, str(found[key]), names, group)
            found[key] = absolute(key, str(found[key]))
    if "loss" in found and found["loss"] not in BUILT_IN_LOSSES:
        TrainConfig(loss=str(found["loss"]), label_smoothing=_number(found.get("label_smoothing")))
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
    from bigbatch.tune.models.dimensions import dimensions_of  # they load Optuna
    from bigbatch.tune.proposers.own_strategy import check_own_strategy
    from bigbatch.tune.proposers.samplers import quiet_optuna

    quiet_optuna()
    # The frontier's value is chosen beside the user's sampler, which never sees that parameter.
    chosen_beside = plan.frontier.searched if plan.frontier else None
    dimensions = [one for one in dimensions_of(plan.ranges) if one.name != chosen_beside]
    check_own_strategy(plan.strategy, plan.stopping, dimensions, [each.direction for each in plan.objectives.each])


def with_accepted_code(plan: SearchPlan, stored: Mapping[str, object]) -> dict[str, object]:
    """``stored``, the description of a resumed study, with the space that ``--accept-changed-code`` accepts.

    A training function and its space are often in one file: who accepts the changed file accepts both.

    Raises ConfigError for a training function that has changed, unless that is accepted.
    """
    if plan.trainable is None:
        return dict(stored)
    _check_same_code(plan, stored)
    one_file = plan.trainable.rpartition(":")[0] == plan.space.source
    accepted = one_file and plan.options.accept_changed_code
    return {**stored, "space_fingerprint": plan.space.fingerprint} if accepted else dict(stored)


def check_components(plan: SearchPlan, stored: Mapping[str, object]) -> None:
    """Refuse changed code in a resumed study; train two batches on the CPU in a new one, or after a change.

    Raises ConfigError and OwnCodeError.
    """
    before, o = stored.get(OWN_CODE), plan.options
    _check_same_code(plan, stored)
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
            try_users_code(config, plan.scan, plan.workers, needs_top1)


def _check_same_code(plan: SearchPlan, stored: Mapping[str, object]) -> None:
    before = stored.get(OWN_CODE)
    if isinstance(before, dict):
        check_same_code(before, plan.own_code, "a study", plan.options.accept_changed_code)


def _check_options_are_taken(plan: SearchPlan) -> None:
    """Raise ConfigError for ``--set loss_options.gamma=…`` and such where no configuration has a component for them."""
    prefixes = {key for key in OPEN_SECTIONS if any(name.startswith(f"{key}.") for name in plan.overrides)}
    if not prefixes - {"data.options"}:
        return
    configs = _configurations(plan)
    for number, (key, *_) in enumerate(option_sections(configs[0])):
        words = [option_sections(config)[number][2:] for config in configs]
        if key in prefixes and not any(takes_options(group, word) for group, word in words):
            name = next(name for name in plan.overrides if name.startswith(f"{key}."))
            raise ConfigError(
                f"{key} are arguments of a function of your own; got --set {name}={plan.overrides[name]} with "
                f"{shown_name(words[0][1])}. Leave it out."
            )


def own_component_lines(plan: SearchPlan) -> list[tuple[str, str]]:
    """The plan's lines about users' files, and about the rates of an optimizer without published ones."""
    lines = [("own code", word) for word in plan.own_code if word != plan.trainable]
    rates = [name for name in optimizers_of(plan.ranges) if is_component_name(name)]
    for name in rates:
        if name not in plan.workload.lr_factors and plan.workload.lr_spread >= OWN_SPREAD:
            advice = "" if plan.options.find_lr else " --find-lr sharpens that."
            lines.append(("rates", f"no published rates of {shown_name(name)} are known: the range is broad.{advice}"))
    return lines


def _configurations(plan: SearchPlan) -> list[TrainConfig]:
    """The configurations of the initial points, and some that are drawn where the space may choose components."""
    points = plan.space.initial_points(plan.workload, plan.overrides) or [{}]
    trials = [StandInTrial(None, point) for point in points[:1]]
    # Built-in spaces choose no component of the user's by themselves.
    if plan.space.source != "built-in":
        trials += [StandInTrial(random.Random(seed), number=seed + 1) for seed in range(DRAWS)]
    return [plan.space(trial, plan.workload, plan.overrides) for trial in trials]


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
