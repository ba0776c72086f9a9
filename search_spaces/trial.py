"""The part of an Optuna trial that a space uses, including bounds (``trial.set_constraint("epoch_s", at_most=60)``); a
stand-in for such a trial; and a trial with pinned values.

The stand-in exists because spaces are checked before anything starts, also on machines without Optuna.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from bigbatch.search_spaces.distribution import Distribution, Suggestions, suggested
from bigbatch.train_loop.config import known_key

BATCH_KEY = "batch.global_size"
"""The key of a configuration whose values ``--batch`` names."""
T = TypeVar("T")
Convert = Callable[[Any], object]
"""Converts the value of a configuration key to the value of the parameter that sets the key."""


class Trial(Protocol):
    """The methods that a space may call. ``optuna.Trial`` has them; a search adds its own ``set_constraint``."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from ``low`` to ``high``, both included. ``log``: sample its logarithm uniformly."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number from ``low`` to ``high``, both included."""

    def suggest_categorical(self, name: str, choices: Sequence[T]) -> T:
        """One of ``choices``: each is None, true, false, a number or a word."""

    def set_constraint(
        self, name: str, value: float | None = None, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Bound what the trial may cost; see ``Constrained.set_constraint``."""


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
        # A bound of 0 has no parts: there the excess is the value itself.
        over = [] if self.at_most is None else [(value - self.at_most) / (abs(self.at_most) or 1.0)]
        under = [] if self.at_least is None else [(self.at_least - value) / (abs(self.at_least) or 1.0)]
        return max(over + under)

    def to_dict(self) -> dict[str, float]:
        """Its bounds and its value, as a study keeps them."""
        parts = {"at_most": self.at_most, "at_least": self.at_least, "value": self.value}
        return {key: float(number) for key, number in parts.items() if number is not None}


class Constrained:
    """Collects the constraints of one trial."""

    def __init__(self) -> None:
        self.constraints: dict[str, Constraint] = {}

    def set_constraint(
        self, name: str, value: float | None = None, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Bound the metric ``name`` of this trial, or a ``value`` that the space computes. A later call replaces it.

        - ``set_constraint("epoch_s", at_most=60)``: the trial ends after an epoch that takes longer.
        - ``set_constraint("steps", steps, at_least=100)``: a trial with fewer steps is not started.
        - ``set_constraint(name, value)``, as in Optuna: without a bound, a value above 0 violates the constraint.

        Raises ValueError for a bound or a value that is no number, and for a metric without a bound.
        """
        if value is not None and at_most is None and at_least is None:
            at_most = 0.0
        self.constraints[name] = Constraint(name, at_most, at_least, value)


def read_constraints(stored: object) -> list[Constraint]:
    """Inverse of ``{name: constraint.to_dict()}``. Values that are no constraint are left out."""
    values = stored.items() if isinstance(stored, Mapping) else ()
    return [Constraint(str(name), **bounds) for name, bounds in values if isinstance(bounds, Mapping) and bounds]


class StandInTrial(Suggestions, Constrained):
    """Answers like an Optuna trial under random sampling, and records each question.

    ``fixed``: parameters with given values; with ``nearest`` the values of their ranges that are nearest to these. All
    others are random; with ``rng=None`` each is the middle of its range.
    Raises ValueError when Optuna would: for a bad range, or one name with different kinds, ``log`` or choices.
    """

    def __init__(
        self,
        rng: random.Random | None,
        fixed: Mapping[str, object] | None = None,
        number: int = 0,
        *,
        nearest: bool = False,
    ) -> None:
        super().__init__()
        self.number = number
        self.params: dict[str, object] = {}
        self.distributions: dict[str, Distribution] = {}
        self.user_attrs: dict[str, object] = {}
        self._rng = rng
        self._fixed, self._nearest = dict(fixed or {}), nearest

    def set_user_attr(self, key: str, value: object) -> None:
        """Keep ``value``, as Optuna's method of this name does."""
        self.user_attrs[key] = value

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        distribution.check(name)
        if name in self.distributions:
            if not self.distributions[name].compatible(distribution):
                raise ValueError(f"parameter {name!r} is suggested twice with different kinds, log or choices")
            return self.params[name]
        if name in self._fixed:
            value = distribution.kept(self._fixed[name])
            if self._nearest:
                value = distribution.nearest(value)
            elif not distribution.contains(value):
                raise ValueError(f"parameter {name!r} cannot be {value!r}: it takes {distribution.in_words()}")
        else:
            value = distribution.middle() if self._rng is None else distribution.sample(self._rng)
        self.distributions[name] = distribution
        self.params[name] = value
        return value


@dataclass(eq=False)
class PinnedTrial(Suggestions):
    """A trial that does not search the parameters whose configuration keys are pinned.

    A space may derive one value from another, say the learning rate from the batch. It must then see the value that
    ``--set`` fixed, not one that is overwritten afterwards.
    """

    _trial: Trial
    _pinned: Mapping[str, object]
    """Dotted configuration keys with their values."""
    _keys: Mapping[str, tuple[str, Convert]]
    """For each parameter that has another name than its key, the key and a function from the pinned key's value."""
    _parameters: Mapping[str, object]
    """Values of parameters that ``--set`` fixes directly."""
    _batches: Sequence[int] = ()
    """If there are any, the only choices of the global batch."""
    answered: set[str] = field(default_factory=set)
    """The names in ``_parameters`` that the space has asked for."""

    # Spaces may also use everything else that Optuna's trial has.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        key, convert = self._keys.get(name, (name, _unchanged))
        full = known_key(key)  # None: a parameter that is no key of the configuration
        if full is not None and full in self._pinned:
            return convert(self._pinned[full])
        if name in self._parameters:
            self.answered.add(name)
            return self._parameters[name]
        if full == BATCH_KEY and self._batches:
            distribution = Distribution("categorical", choices=tuple(self._batches))
        return suggested(self._trial, name, distribution)


class SpaceTrial(Suggestions, Constrained):
    """An Optuna trial as a space sees it: it also collects constraints. Everything else is Optuna's."""

    def __init__(self, trial: Any) -> None:
        super().__init__()
        self._trial = trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        return suggested(self._trial, name, distribution)


def _unchanged(value: T) -> T:
    return value
