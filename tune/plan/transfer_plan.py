"""``--transfer-to``: check the target and plan the trials there. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import BATCH_KEY
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, divisible
from bigbatch.tune.plan.batches import divides, parse_batches
from bigbatch.tune.plan.frontier_plan import FrontierPlan, frontier_plan
from bigbatch.tune.study.objectives import Objectives

RATE_KEY = "optimizer.peak_lr"
FEWEST, SHARE = 3, 4
"""At the target: every fourth trial, and at least so many."""
FEWEST_BEFORE = 2
"""At the smaller batches: at least so many trials, and one for each batch."""


@dataclass(frozen=True)
class TransferPlan:
    """What ``--transfer-to`` asks for."""

    target: int
    batches: tuple[int, ...]
    """At which the search tunes first, smallest first."""
    first: int
    """Trials at these batches."""
    trials: int
    """Trials at the target."""

    def describe(self, open_ended: bool) -> str:
        """For the plan that is printed. ``open_ended``: a budget is the only limit."""
        tuned = ", ".join(f"{batch:,}" for batch in self.batches)
        if open_ended:
            return (
                f"three quarters of the budget at {tuned}; the rest at {self.target:,}, around the rule fitted to them"
            )
        return (
            f"{self.first} trials at {tuned}; then {self.trials} whole runs at {self.target:,}, around the rule that "
            "is fitted to them"
        )


def parse_target(text: str | None) -> int | None:
    """``32k`` → 32768. Raises ConfigError for anything but one batch."""
    if text is None:
        return None
    try:
        (target,) = parse_batches(text)
    except (ConfigError, ValueError):
        raise ConfigError(
            f"--transfer-to takes one batch, a number of images above 0; got {text!r}. Write e.g. --transfer-to 32k "
            "(k = 1024)."
        ) from None
    return target


def with_target(
    space: Space,
    workload: Workload,
    ranges: Mapping[str, ParamRange],
    overrides: Mapping[str, object],
    target: int,
    batches: Sequence[int],
) -> Workload:
    """The workload that searches the smaller batches and the target. Raises ConfigError if that makes no sense.

    Args:
        batches: of ``--batch``; empty: the space's own, as far as they are smaller.
    """
    frontier = frontier_plan(space, ranges, overrides)
    if frontier is None or space.key_of(frontier.name) != BATCH_KEY or space.inverse is None:
        _refuse("needs a space whose FRONTIER is the global batch and that has parameters_of", f"space {space.name!r}",
                "Write --space large_batch")  # fmt: skip
    if BATCH_KEY in overrides:
        _refuse("tunes at other batches first", f"--set batch={overrides[BATCH_KEY]}", "Write --batch B instead of it")
    if RATE_KEY in overrides:
        _refuse("predicts the rate", f"--set peak_lr={overrides[RATE_KEY]}", "Leave out one of them")
    if target > workload.train_size:
        _refuse(f"takes at most the {workload.train_size:,} training images", str(target),
                f"Write --transfer-to {workload.train_size} or less")  # fmt: skip
    if not divides(target, workload):
        fix = divisible(target, workload.workers, workload.max_micro_size)
        _refuse(f"must divide over the {workload.workers} workers of a trial, in equal micro-batches", str(target),
                f"Write e.g. --transfer-to {fix}")  # fmt: skip
    own = [value for value in frontier.values if isinstance(value, int)]
    tuned = sorted(batches) or [value for value in own if value < target]
    if not tuned or tuned[-1] >= target:
        met = f"{target} and the largest batch {tuned[-1]}" if tuned else f"{target} and the smallest batch {min(own)}"
        _refuse("names a batch above those at which the search tunes", met, "Write a larger one, or --batch B below it")
    return dataclasses.replace(workload, batches=(*tuned, target))


def transfer_plan(
    target: int | None, frontier: FrontierPlan | None, trials: int, objectives: Objectives, open_ended: bool
) -> TransferPlan | None:
    """How the trials are divided; None without a target. Raises ConfigError for too few, or another objective.

    Args:
        open_ended: a budget is the only limit, and ``trials`` a guess.
    """
    if target is None:
        return None
    if not objectives.one_metric or frontier is None:
        _refuse("needs a search for one metric", objectives.text, "Leave out one of them")
    tuned = tuple(value for value in frontier.values if isinstance(value, int) and value < target)
    at_target = max(FEWEST, trials // SHARE)
    least = max(FEWEST_BEFORE, len(tuned))
    if trials - at_target < least and not open_ended:
        enough = next(n for n in range(trials, 10 * (least + FEWEST)) if n - max(FEWEST, n // SHARE) >= least)
        _refuse(f"needs {least} trials or more at the smaller batches and {FEWEST} at the target", f"--trials {trials}",
                f"Write --trials {enough}")  # fmt: skip
    return TransferPlan(target, tuned, max(least, trials - at_target), at_target)


def _refuse(rule: str, met: str, fix: str) -> NoReturn:
    raise ConfigError(f"--transfer-to {rule}; got {met}. {fix}, or leave --transfer-to out.")
