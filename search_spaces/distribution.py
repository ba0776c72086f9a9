"""The range that one ``suggest_*`` call declares, and the form in which a study keeps a choice: see ``KINDS``."""

from __future__ import annotations

import abc
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

T = TypeVar("T")
KINDS = "None, true, false, a number or a word"
_EDGE_PROBABILITY = 0.25
"""How often a random value is an end of the range: spaces break there most often."""
_GRID = 1e-8
"""How far a value may be from the grid, in steps; Optuna's own tolerance."""


@dataclass(frozen=True)
class Distribution:
    """The range that one ``suggest_*`` call declares. With a step, ``high`` is the last value of the grid."""

    kind: str
    """``float``, ``int`` or ``categorical``."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[object, ...] = ()
    """The choices, as a study keeps them."""

    def __post_init__(self) -> None:
        if self.kind in ("float", "int"):
            for name in ("low", "high", "step"):
                object.__setattr__(self, name, self._number(getattr(self, name)))
            if self.has_grid and self.low <= self.high < math.inf and self.low > -math.inf:
                object.__setattr__(self, "high", self._on_grid(self.high))

    def _number(self, value: Any) -> Any:
        """``value`` as a Python number, whole if ``kind`` is ``int`` and nothing is lost; anything else unchanged."""
        if value is None:
            return None
        value = float(value) if self.kind == "float" else python_value(value)
        return int(value) if self.kind == "int" and math.isfinite(value) and value == int(value) else value

    def check(self, name: str) -> None:
        """Raise ValueError for a range that Optuna refuses."""
        if self.kind == "categorical":
            if not self.choices:
                raise ValueError(f"parameter {name!r} has no choices")
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"parameter {name!r} needs low <= high, got {self.low} and {self.high}")
        if self.kind == "int" and any(one is not None and one != int(one) for one in (self.low, self.high, self.step)):
            raise ValueError(f"parameter {name!r} needs whole numbers, got {self.low}, {self.high} and {self.step}")
        if self.log and self.low <= 0:
            raise ValueError(f"parameter {name!r} is log, so low must be above 0, got {self.low}")
        if self.log and self.step not in (None, 1):
            raise ValueError(f"parameter {name!r} cannot have both log and step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"parameter {name!r} needs a step above 0, got {self.step}")

    def kept(self, value: object) -> object:
        """The form in which a study keeps a value that a space's file or a person gives."""
        try:
            return kept_choice(value) if self.kind == "categorical" else python_value(value)
        except ValueError:
            return value

    @property
    def has_grid(self) -> bool:
        """Whether only some numbers of its kind within the range are values."""
        return self.step is not None and self.step > 0 and not self.log and (self.kind, self.step) != ("int", 1)

    def contains(self, value: object) -> bool:
        """Whether ``value`` is one of the choices, or a number of the right kind within the range and on its grid."""
        if self.kind == "categorical":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / self.step if self.step and self.has_grid else 0.0
        return abs(steps - round(steps)) < _GRID and (self.kind == "float" or value == int(value))

    def compatible(self, other: Distribution) -> bool:
        """Whether Optuna accepts both under one name in one study."""
        return (self.kind, self.log, self.choices) == (other.kind, other.log, other.choices)

    def in_words(self) -> str:
        """E.g. ``0.25 … 4 (log)``, ``0 … 9 by 3``, ``lars, sgd``."""
        if self.kind == "categorical":
            return ", ".join(str(choice) for choice in self.choices)
        text = f"{self.low:.4g} … {self.high:.4g}" + (" (log)" if self.log else "")
        return f"{text} by {self.step:g}" if self.has_grid else text

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

    def nearest(self, value: Any) -> Any:
        """The value in the range, and on its grid, nearest to ``value``; of choices ``value`` itself, or the first."""
        if self.kind == "categorical":
            return value if self.contains(value) else self.choices[0]
        inside = min(max(value, self.low), self.high)
        if self.step and self.has_grid:
            inside = min(self._on_grid(inside + self.step / 2), self.high)
        return round(inside) if self.kind == "int" else float(inside)

    def _edge(self, rng: random.Random) -> float:
        return self.low if rng.random() < 0.5 else self.high

    def _inside(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            # exp(log(x)) may miss the ends by the last digit, and Optuna refuses what lies outside.
            return min(max(value, self.low), self.high)
        return self._on_grid(rng.uniform(self.low, self.high))

    def _on_grid(self, value: float) -> float:
        """The last value of the grid up to ``value``, as Optuna counts: 0.9, not 0.8999999999999999."""
        if not self.has_grid:
            return value
        low, step = Decimal(str(self.low)), Decimal(str(self.step))
        steps = ((Decimal(str(value)) - low) / step + Decimal(_GRID)) // 1
        return float(low + steps * step) if self.kind == "float" else int(low + steps * step)


class Suggestions(abc.ABC):
    """Maps the three ``suggest_*`` calls to one method, ``_suggest(name, distribution)``."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._suggest(name, Distribution("float", low, high, log, step))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._suggest(name, Distribution("int", low, high, log, step))

    def suggest_categorical(self, name: str, choices: Sequence[T]) -> T:
        """One of ``choices``: a plain value, as a study keeps it."""
        if isinstance(choices, (set, frozenset)):  # another process may have another order
            raise ValueError(f"parameter {name!r} has a set of choices, which has no order; write a list")
        chosen: T = self._suggest(name, Distribution("categorical", choices=_kept_choices(name, choices)))
        return chosen

    @abc.abstractmethod
    def _suggest(self, name: str, distribution: Distribution) -> Any:
        """The value of a parameter, as a study keeps it."""


def suggested(trial: Any, name: str, distribution: Distribution) -> Any:
    """Ask a trial with Optuna's methods for the value of a parameter."""
    if distribution.kind == "categorical":
        return trial.suggest_categorical(name, list(distribution.choices))
    low, high, step, log = distribution.low, distribution.high, distribution.step, distribution.log
    if distribution.kind == "int":
        return trial.suggest_int(name, low, high, step=1 if step is None else step, log=log)
    return trial.suggest_float(name, low, high, step=step, log=log)


def python_value(value: Any) -> Any:
    """The value with Python's numbers in place of NumPy's."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype") else value


def kept_choice(choice: object) -> Any:
    """The form in which a study keeps a choice. Raises ValueError if it cannot keep it, e.g. NaN, a tuple or a dict."""
    choice = python_value(choice)
    if choice is None or isinstance(choice, bool):
        return choice
    if isinstance(choice, str):
        return str.__str__(choice)  # of an Enum of words, the word
    # NaN is unequal to itself: it would never be found among the choices.
    if isinstance(choice, (int, float)) and choice == choice:
        return int(choice) if isinstance(choice, int) else float(choice)
    raise ValueError(
        f"the choice {choice!r}, which no study can keep: a choice is {KINDS}. Let words choose it from a dict"
    )


def _kept_choices(name: str, choices: Sequence[object]) -> tuple[object, ...]:
    """The choices in the form that a study keeps. Raises ValueError if it cannot tell two apart, e.g. True and 1."""
    first: dict[object, object] = {}
    kept = []
    for choice in map(python_value, choices):
        try:
            kept.append(kept_choice(choice))
        except ValueError as error:
            raise ValueError(f"parameter {name!r} has {error}") from None
        for same in (kept[-1], str(kept[-1])):  # --set, tables and file names have words alone
            other = first.setdefault(same, choice)
            if repr(other) != repr(choice):
                raise ValueError(
                    f"parameter {name!r} has the choices {other!r} and {choice!r}, which no study can tell apart; "
                    "write words for them"
                )
    return tuple(kept)
