"""Bounds that a space sets on its trials: ``trial.set_constraint("epoch_s", at_most=60)``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bigbatch.search_spaces.distribution import Distribution, Suggestions, suggested


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric that the trial reports, or on a value that the space knows. Raises ValueError for no bound.

    ``value``: what the space knows. None: the metric of this name is measured after each epoch of the trial.
    """

    name: str
    at_most: float | None = None
    at_least: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        given = {"at_most": self.at_most, "at_least": self.at_least, "value": self.value}
        for key, number in given.items():
            if number is not None and (isinstance(number, bool) or not math.isfinite(number)):
                raise ValueError(f"constraint {self.name!r} needs a number as {key}, got {number!r}")
        if self.at_most is None and self.at_least is None:
            raise ValueError(f"constraint {self.name!r} has no bound; write at_most=… or at_least=…")
        if self.at_most is not None and self.at_least is not None and self.at_most < self.at_least:
            raise ValueError(
                f"constraint {self.name!r} needs at_least <= at_most, got {self.at_least} and {self.at_most}"
            )

    def excess(self, value: float) -> float:
        """How far ``value`` is beyond the bound, as a part of the bound. Up to 0: the constraint is satisfied."""
        # Nothing is a part of 0: with such a bound the value itself counts.
        over = [] if self.at_most is None else [(value - self.at_most) / (abs(self.at_most) or 1.0)]
        under = [] if self.at_least is None else [(self.at_least - value) / (abs(self.at_least) or 1.0)]
        return max(over + under)

    def to_dict(self) -> dict[str, float]:
        """Its bounds and its value, as a study keeps them."""
        parts = {"at_most": self.at_most, "at_least": self.at_least, "value": self.value}
        return {key: float(number) for key, number in parts.items() if number is not None}


class Constrained:
    """Something that takes in the constraints of one trial."""

    def __init__(self) -> None:
        self.constraints: dict[str, Constraint] = {}

    def set_constraint(
        self, name: str, value: float | None = None, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Bound the metric ``name`` of this trial, or a ``value`` that the space computes. A later call replaces it.

        - ``set_constraint("epoch_s", at_most=60)``: the trial ends when an epoch has shown that it is slower.
        - ``set_constraint("steps", steps, at_least=100)``: a trial with fewer steps is not started.
        - ``set_constraint(name, value)``, as Optuna has it: without a bound, a value above 0 is too much.

        Raises ValueError for a bound or a value that is no number, and for a metric without a bound.
        """
        if value is not None and at_most is None and at_least is None:
            at_most = 0.0
        self.constraints[name] = Constraint(name, at_most, at_least, value)


class SpaceTrial(Suggestions, Constrained):
    """An Optuna trial as a space sees it: it takes in constraints. The rest is Optuna's."""

    def __init__(self, trial: Any) -> None:
        super().__init__()
        self._trial = trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        return suggested(self._trial, name, distribution)


def read_constraints(stored: object) -> list[Constraint]:
    """Inverse of ``{name: constraint.to_dict()}``. What is no constraint is left out."""
    values = stored.items() if isinstance(stored, Mapping) else ()
    return [Constraint(str(name), **bounds) for name, bounds in values if isinstance(bounds, Mapping) and bounds]
