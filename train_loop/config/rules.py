"""Checks of configuration values, and the error that they raise."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bigbatch.base.option_values import nearest_word


class ConfigError(ValueError):
    """A configuration that cannot be trained; the message names rule, value and fix."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows (IPython calls it): the line alone, for wherever it was raised, the input is wrong."""
        return [f"{type(self).__name__}: {self}"]


class ConflictError(ConfigError):
    """Two values that do not go together, each of which may be right with another one."""


def require(ok: bool, rule: str, value: object, fix: str) -> None:
    """Raise ConfigError unless ``ok``. Its message has the rule, the value met, and what to write instead."""
    if not ok:
        raise ConfigError(f"{rule}; got {value!r}. {fix}")


def require_one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``allowed``; the message names the nearest one."""
    allowed = tuple(allowed)
    if value not in allowed:
        near = nearest_word(str(value), allowed)
        hint = f"Did you mean {near!r}?" if near else f"Choose one of {', '.join(allowed)}."
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}. {hint}")


def require_in_range(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Raise ConfigError unless ``value`` is a finite number from ``low`` to ``high``.

    ``open_low``: ``low`` itself is refused.
    """
    above = value > low if open_low else value >= low
    ok = math.isfinite(value) and above and value <= high
    interval = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    require(ok, f"{name} must be {interval}", value, f"Set {name} inside that range.")
