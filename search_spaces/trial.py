"""The part of an Optuna trial that a space uses; a stand-in for it; and a trial with pinned values.

The stand-in exists because spaces are checked before anything starts, also on machines without Optuna.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from bigbatch.search_spaces.constraints import Constrained
from bigbatch.search_spaces.distribution import Distribution, Suggestions, suggested
from bigbatch.train_loop.config import known_key

BATCH_KEY = "batch.global_size"
"""The key of a configuration whose values ``--batch`` names."""
T = TypeVar("T")
Convert = Callable[[Any], object]
"""From the value of a configuration key to that of the parameter that sets it."""


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
        """Bound what the trial may cost; see ``bigbatch.search_spaces.constraints``."""


class StandInTrial(Suggestions, Constrained):
    """Answers like an Optuna trial under random sampling, and records each question.

    ``fixed``: parameters with given values. All others are random; with ``rng=None`` each is the middle of its range.
    Raises ValueError when Optuna would: for a bad range, or one name with different kinds, ``log`` or choices.
    """

    def __init__(self, rng: random.Random | None, fixed: Mapping[str, object] | None = None, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.params: dict[str, object] = {}
        self.distributions: dict[str, Distribution] = {}
        self.user_attrs: dict[str, object] = {}
        self._rng = rng
        self._fixed = dict(fixed or {})

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
            if not distribution.contains(value):
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

    # Spaces may use all else that Optuna's trial has.
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


def _unchanged(value: T) -> T:
    return value
