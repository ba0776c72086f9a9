"""Durations on the command line."""

from __future__ import annotations

import re

from bigbatch.train_loop.config import ConfigError


def parse_duration(text: str, option: str = "--time-budget") -> float:
    """``90s``, ``30min``, ``30m``, ``4h``, ``1h30m`` → seconds. Raises ConfigError otherwise, also without a unit."""
    written = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", written) and float(written):
        raise ConfigError(f"{option} needs a unit; got {text!r}. Write e.g. {written}h, {written}min or {written}s.")
    if written.startswith("-"):
        raise ConfigError(f"{option} must not be negative; got {text!r}. Write e.g. 4h, 30min or 90s.")
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(f"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", written)
    hours, minutes, rest = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + rest
    if total <= 0:
        raise ConfigError(f"{option} is a duration above 0; got {text!r}. Write e.g. 4h, 30min or 90s.")
    return total
