"""The frontier of a space: the parameter whose values a search compares, and the values that it tries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.distribution import kept_choice
from bigbatch.search_spaces.registry import Space
from bigbatch.train_loop.config import ConfigError

MAX_VALUES = 16
"""Each value gets at least half of an equal share of the trials: with more values, none would get enough."""


@dataclass(frozen=True)
class FrontierPlan:
    """The parameter that a space declares as its frontier, and its values in this search."""

    name: str
    values: tuple[object, ...]
    """Smallest first; choices that are no numbers in the space's order. One value if ``--set`` or ``--batch`` fixes the
    parameter."""

    @property
    def searched(self) -> str | None:
        """The parameter's name, for ``SearchFacts.frontier``; None if there is only one value: all trials compare."""
        return self.name if len(self.values) > 1 else None


def frontier_plan(
    space: Space, ranges: Mapping[str, ParamRange], overrides: Mapping[str, object]
) -> FrontierPlan | None:
    """The frontier of a search; None if the space declares none.

    Raises ConfigError if the parameter is not in every trial, or is neither a choice nor a whole number of few values.
    """
    name = space.frontier
    if name is None:
        return None
    if (key := space.key_of(name)) in overrides:
        convert = space.parameter_keys[name][1] if name in space.parameter_keys else lambda value: value
        return FrontierPlan(name, (kept_choice(convert(overrides[str(key)])),))
    if name in overrides:
        return FrontierPlan(name, (overrides[name],))
    found = ranges.get(name)
    if found is None or not found.always:
        where = "no trial" if found is None else "only some trials"
        raise _refused(space, f"which is in {where}", "Suggest it in each trial")
    values = _values(found)
    if not values:
        raise _refused(space, f"with the range {found.describe()}", f"Suggest one of at most {MAX_VALUES} choices")
    return FrontierPlan(name, values)


def _values(found: ParamRange) -> tuple[object, ...]:
    """All values of a range; empty if it is a float or has more than ``MAX_VALUES``."""
    if found.kind == "int":
        step = int(found.step or 1)
        # Not all of them: a range may have millions.
        values: tuple[object, ...] = tuple(range(int(found.low), int(found.high) + 1, step)[: MAX_VALUES + 1])
    else:
        values = found.choices
    if len(values) > MAX_VALUES:
        return ()
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values


def _refused(space: Space, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"FRONTIER of a space names a choice, or a whole number of at most {MAX_VALUES} values, that every trial has; "
        f"got {space.frontier!r} of space {space.name!r}, {what}. {fix}, or leave FRONTIER out."
    )
