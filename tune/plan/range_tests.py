"""``--find-lr``: which range tests a search makes before its first trial, and what follows from them."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from pathlib import Path

from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.priors import lr_factor
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.plug_ins import shown_name
from bigbatch.tune.plan.prior import TRIALS_TO_SEE, optimizers_of, rate_moves, rate_prior, read_range_test
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import around_moved_centres


def range_tests(
    space: Space, workload: Workload, overrides: Mapping[str, object], ranges: Mapping[str, ParamRange]
) -> dict[str, TrainConfig]:
    """For each optimizer of a search that has no range test yet, the configuration to test.

    It is the space's initial point for that optimizer, at the smallest batch of its frontier, where a test is cheapest;
    or else the first one drawn. Raises ConfigError if the space
    searches no optimizer's rate around the prior.
    """
    searched = [name for name in optimizers_of(ranges) if rate_moves(space, workload, name, overrides)]
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
        try:
            tested, suggestion = read_range_test(str(range_test_file(plan.folder, name)))
        except ConfigError:
            continue
        factors[name] = lr_factor(untested, tested, suggestion)
    workload = rate_prior(factors, plan.ranges).apply(workload)
    ranges = check_space(plan.space, workload, pinned=plan.overrides)
    moved = dataclasses.replace(plan, workload=workload, ranges=ranges)
    return dataclasses.replace(moved, warm_start=around_moved_centres(plan, moved))
