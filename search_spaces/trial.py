"""The part of an Optuna trial that a space uses; a stand-in for it; and a trial with pinned values.

The stand-in exists because spaces are checked before anything starts, also on machines without Optuna.
"""

from __future__ import annotations

import abc
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from bigbatch.search_spaces.constraints import Constrained
from bigbatch.train_loop.config import known_key

BATCH_KEY = "batch.global_size"
"""The key of a configuration whose values ``--batch`` names."""
_EDGE_PROBABILITY = 0.25
"""How often the stand-in draws an end of the range: spaces break there most often."""


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
        """One of ``choices``."""

    def set_constraint(
        self, name: str, value: float | None = None, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Bound what the trial may cost; see ``bigbatch.search_spaces.constraints``."""


@dataclass(frozen=True)
class Distribution:
    """The range that one ``suggest_*`` call declares."""

    kind: str
    """``float``, ``int`` or ``categorical``."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[object, ...] = ()

    def check(self, name: str) -> None:
        """Raise ValueError for a range that Optuna refuses."""
        if self.kind == "categorical":
            if not self.choices:
                raise ValueError(f"parameter {name!r} has no choices")
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"parameter {name!r} needs low <= high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"parameter {name!r} is log, so low must be above 0, got {self.low}")
        if self.log and self.step not in (None, 1):
            raise ValueError(f"parameter {name!r} cannot have both log and step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"parameter {name!r} needs a step above 0, got {self.step}")

    def contains(self, value: object) -> bool:
        """Whether ``value`` is one of the choices, or a number of the right kind within the range."""
        if self.kind == "categorical":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.low <= value <= self.high and (self.kind == "float" or value == int(value))

    def compatible(self, other: Distribution) -> bool:
        """Whether Optuna accepts both under one name in one study."""
        return (self.kind, self.log, self.choices) == (other.kind, other.log, other.choices)

    def sample(self, rng: random.Random) -> Any:
        """A random value; an end of the range more often than uniform sampling would give it."""
        if self.kind == "categorical":
            return rng.choice(self.choices)
        value = self._edge(rng) if rng.random() < _EDGE_PROBABILITY else self._inside(rng)
        return round(value) if self.kind == "int" else value

    def middle(self) -> Any:
        """The middle of the range, or the first choice."""
        if self.kind == "categorical":
            return self.choices[0]
        value = math.sqrt(self.low * self.high) if self.log else self._on_grid((self.low + self.high) / 2)
        return round(value) if self.kind == "int" else value

    def _edge(self, rng: random.Random) -> float:
        return self.low if rng.random() < 0.5 else self._on_grid(self.high)

    def _inside(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return min(max(value, self.low), self.high)
        return self._on_grid(rng.uniform(self.low, self.high))

    def _on_grid(self, value: float) -> float:
        if self.step is None:
            return value
        steps = math.floor((value - self.low) / self.step + 1e-9)  # 1e-9: (0.3 - 0) / 0.1 is 2.999…96
        return self.low + steps * self.step


class _Suggestions(abc.ABC):
    """Maps the three ``suggest_*`` calls to one method, ``_suggest(name, distribution)``."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._suggest(name, Distribution("float", float(low), float(high), log, step))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._suggest(name, Distribution("int", low, high, log, step))

    def suggest_categorical(self, name: str, choices: Sequence[T]) -> T:
        chosen: T = self._suggest(name, Distribution("categorical", choices=tuple(choices)))
        return chosen

    @abc.abstractmethod
    def _suggest(self, name: str, distribution: Distribution) -> Any:
        """The value of a parameter."""


class StandInTrial(_Suggestions, Constrained):
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
            value = self._fixed[name]
            if not distribution.contains(value):
                raise ValueError(f"parameter {name!r} cannot be {value!r} in {distribution}")
        else:
            value = distribution.middle() if self._rng is None else distribution.sample(self._rng)
        self.distributions[name] = distribution
        self.params[name] = value
        return value


class PinnedTrial(_Suggestions):
    """A trial that does not search the parameters whose configuration keys are pinned.

    A space may derive one value from another, say the learning rate from the batch. It must then see the value that
    ``--set`` fixed, not one that is overwritten afterwards.

    ``pinned``: dotted configuration keys with their values. ``parameter_keys``: for each parameter that has another
    name than its key, the key and a function from the pinned key's value to the parameter's. ``parameters``: values
    of parameters that ``--set`` fixes directly. ``batches``: if there are any, the only choices of the global batch.
    """

    def __init__(
        self,
        trial: Trial,
        pinned: Mapping[str, object],
        parameter_keys: Mapping[str, tuple[str, Convert]],
        parameters: Mapping[str, object] = MappingProxyType({}),
        batches: Sequence[int] = (),
    ) -> None:
        self._trial = trial
        self._pinned = pinned
        self._keys = parameter_keys
        self._parameters = parameters
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def _suggest(self, name: str, distribution: Distribution) -> Any:
        key, convert = self._keys.get(name, (name, _unchanged))
        full = known_key(key)  # None: a parameter that is no key of the configuration
        if full is not None and full in self._pinned:
            return convert(self._pinned[full])
        if name in self._parameters:
            return self._parameters[name]
        if full == BATCH_KEY and self._batches:
            return self._trial.suggest_categorical(name, list(self._batches))
        if distribution.kind == "categorical":
            return self._trial.suggest_categorical(name, list(distribution.choices))
        low, high, step, log = distribution.low, distribution.high, distribution.step, distribution.log
        if distribution.kind == "int":
            return self._trial.suggest_int(name, int(low), int(high), step=1 if step is None else int(step), log=log)
        return self._trial.suggest_float(name, low, high, step=step, log=log)


def _unchanged(value: T) -> T:
    return value
