"""The learning rates around which a study searches, and how widely: ``--find-lr`` makes range tests first."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json
from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.priors import OWN_SPREAD, lr_factor
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.plug_ins import is_own, shown_name
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import around_moved_centres

TRIALS_TO_SEE = 64
"""Number of draws from a space in which an optimizer's rate must change with the prior."""
WIDE, NARROW = 16.0, 4.0
"""How far from the centre rates are searched (``Workload.lr_spread``): before range tests, and after them."""


@dataclass(frozen=True)
class RatePrior:
    """Where a study searches learning rates. study.json keeps it."""

    factors: Mapping[str, float]
    """For each tested optimizer, the factor from the rule's centre to the range test's suggestion."""
    spread: float
    """See ``Workload.lr_spread``."""

    @classmethod
    def of_study(cls, stored: Mapping[str, object]) -> RatePrior:
        """The prior in study.json."""
        factors = stored.get("lr_factors")
        return cls(factors if isinstance(factors, dict) else {}, json_values.number(stored, "lr_spread", NARROW))

    def apply(self, workload: Workload) -> Workload:
        """The workload with this prior."""
        return dataclasses.replace(workload, lr_factors=self.factors, lr_spread=self.spread)


def rate_prior(factors: Mapping[str, float], ranges: Mapping[str, ParamRange]) -> RatePrior:
    """The prior after range tests. It is narrow if each optimizer that the search may choose was tested.

    A parameter has one range in a study. So one optimizer without a test keeps the range wide for all.
    """
    searched = optimizers_of(ranges)
    untested = set(searched) - set(factors)
    if any(is_own(name) for name in untested):
        return RatePrior(factors, OWN_SPREAD)
    return RatePrior(factors, WIDE if untested or not searched else NARROW)


def optimizers_of(ranges: Mapping[str, ParamRange]) -> list[str]:
    """The optimizers whose rate a space derives from other parameters, as ``check_space`` met them."""
    return [str(found.conditions["optimizer"][0]) for found in ranges.values() if found.kind == "derived"]


def read_range_test(file: Path) -> tuple[TrainConfig, float] | None:
    """The configuration of a range test and the learning rate that it suggests.

    None where no test can be read, or its loss never exploded: its minimum is only a bound then.
    """
    values = read_json(file)
    suggestion = json_values.number(values, "suggestion")
    if values.get("exploded_at") is None or not 0 < suggestion < math.inf or "config" not in values:
        return None
    try:
        return TrainConfig.from_dict(json_values.mapping(values, "config")), suggestion
    except ConfigError:  # of another version
        return None


def _rate_moves(space: Space, workload: Workload, optimizer: str, pinned: Mapping[str, object]) -> bool:
    """Whether the space searches the optimizer's rate around the prior, so that a range test moves it."""
    # Any factor but 1 would do.
    moved = dataclasses.replace(workload, lr_factors={optimizer: 1.5})
    for seed in range(TRIALS_TO_SEE):
        before = space(StandInTrial(random.Random(seed)), workload, pinned)
        if before.optimizer.name == optimizer:
            return space(StandInTrial(random.Random(seed)), moved, pinned).optimizer.peak_lr != before.optimizer.peak_lr
    return False


def range_tests(
    space: Space, workload: Workload, overrides: Mapping[str, object], ranges: Mapping[str, ParamRange]
) -> dict[str, TrainConfig]:
    """For each optimizer of a search that has no range test yet, the configuration to test.

    It is the space's initial point for that optimizer, at the smallest batch of its frontier, where a test is cheapest;
    or else the first one drawn. Raises ConfigError if the space
    searches no optimizer's rate around the prior.
    """
    searched = [name for name in optimizers_of(ranges) if _rate_moves(space, workload, name, overrides)]
    if not searched:
        fixed = " with a fixed rate" if "optimizer.peak_lr" in overrides else ""
        raise ConfigError(
            f"--find-lr needs a space that searches learning rates around the prior; got --space {space.name}{fixed}. "
            "Leave it out, or use searched_peak_lr in the space."
        )
    name = space.frontier
    cheapest = {name: ranges[name].choices[0]} if name is not None and name in ranges and ranges[name].choices else {}
    points = [{**point, **cheapest} for point in space.initial_points(workload, overrides)]
    trials = [StandInTrial(None, point) for point in points]
    trials += [StandInTrial(random.Random(seed)) for seed in range(TRIALS_TO_SEE)]
    found: dict[str, TrainConfig] = {}
    for trial in trials:
        config = space(trial, workload, overrides)
        if config.optimizer.name in searched and config.optimizer.name not in workload.lr_factors:
            found.setdefault(config.optimizer.name, config)
    return found


def wanted_tests(plan: SearchPlan) -> dict[str, TrainConfig]:
    """``range_tests`` of a plan with ``--find-lr``; empty without it."""
    if not plan.options.find_lr:
        return {}
    return range_tests(plan.space, plan.workload, plan.overrides, plan.ranges)


def range_test_file(folder: Path, optimizer: str) -> Path:
    """Where a study keeps the range test of an optimizer."""
    return folder / f"lr_find-{re.sub(r'[^A-Za-z0-9._-]+', '_', shown_name(optimizer))}.json"


def plan_with_tests(plan: SearchPlan, optimizers: list[str]) -> SearchPlan:
    """The plan around the rates that the study's range tests of these optimizers suggest.

    A test that does not exist, or whose loss never exploded, changes nothing.
    """
    workload, factors = plan.workload, dict(plan.workload.lr_factors)
    # A factor is relative to the rule's own centre, not to one that an earlier test has moved.
    untested = dataclasses.replace(workload, lr_factors={}, fixed=plan.overrides)
    for name in optimizers:
        if test := read_range_test(range_test_file(plan.folder, name)):
            factors[name] = lr_factor(untested, *test)
    workload = rate_prior(factors, plan.ranges).apply(workload)
    ranges = check_space(plan.space, workload, pinned=plan.overrides)
    moved = dataclasses.replace(plan, workload=workload, ranges=ranges)
    return dataclasses.replace(moved, warm_start=around_moved_centres(plan, moved))
