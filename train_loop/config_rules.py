"""Checks of configuration values, and the error that they raise."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration that cannot be trained; the message names rule, value and fix."""


def require(ok: bool, rule: str, value: object, fix: str) -> None:
    if not ok:
        raise ConfigError(f"{rule}; got {value!r}. {fix}")


def choice(name: str, value: str, allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(allowed)}."
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}. {hint}")


def finite(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    above = value > low if open_low else value >= low
    ok = math.isfinite(value) and above and value <= high
    interval = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    require(ok, f"{name} must be {interval}", value, f"Set {name} inside that range.")
