"""Parse values of options as people type them, and find the nearest known word to a mistyped one.

The parsing functions are ``type`` arguments for argparse. Their ArgumentTypeError has the rule, the value met, the fix.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Iterable

NEAR = 0.65
"""A word with at least this difflib ratio counts as mistyped. Three letters with two of them swapped have 0.67."""
THOUSANDS = {"k": 1_000, "m": 1_000_000}


def parse_whole_number(text: str) -> int:
    """Parse ``1000``, ``1e3`` or ``1_000``."""
    value: float | None
    try:
        value = int(text)
    except ValueError:
        value = _float(text)
    _refuse_negative(text, value, "e.g. 10")
    if value is not None and math.isfinite(value) and value == int(value):
        return int(value)
    raise argparse.ArgumentTypeError(
        f"must be a whole number; got {text!r}. Write {plain_number_example(text, 'e.g. 10')}."
    )


def parse_decimal_number(text: str) -> float:
    """Parse a number. Whether ``nan`` and ``inf`` make sense is the rule of the option."""
    value = _float(text)
    if value is None:
        raise argparse.ArgumentTypeError(
            f"must be a number; got {text!r}. Write {plain_number_example(text, 'e.g. 0.5', percent=True)}."
        )
    _refuse_negative(text, value, "e.g. 0.5")
    return value


def parse_port(text: str) -> int:
    """A TCP port that needs no root, 1024 to 65535."""
    _refuse_negative(text, _float(text), "e.g. 9400")
    # isdigit() is true of digits that int() refuses, such as a raised two.
    if text.isascii() and text.isdigit() and 1024 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 1024 to 65535; got {text!r}. Write e.g. 9400.")


def parse_fraction(text: str) -> float:
    """A part of a whole: ``0.1`` or ``10%``."""
    percent = _float(text.rstrip()[:-1]) if text.rstrip().endswith("%") else None
    value = percent / 100 if percent is not None else _float(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"must be a part of the whole; got {text!r}. Write e.g. 0.1 or 10%.")
    _refuse_negative(text, value, "e.g. 0.1 or 10%")
    return value


def _refuse_negative(text: str, value: float | None, example: str) -> None:
    """No option of ours takes a number below 0."""
    if value is not None and value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative; got {text}. Write {example}.")


def plain_number_example(text: str, otherwise: str, percent: bool = False) -> str:
    """``2k`` (and with ``percent`` also ``10%``) as a plain number; ``otherwise`` for any other text."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", text.strip()):
        return f"{float(match[1]) * THOUSANDS[match[2].lower()]:.15g}"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match and percent:
        return f"{float(match[1]) / 100:.15g}"
    return otherwise


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that the user probably meant, ignoring case; None if none is near enough.

    The beginning of a single known word, two letters or more, means that word: ``on`` for ``online``.
    """
    by_lower = {one.lower(): one for one in known}
    begun = [one for one in by_lower if one.startswith(word.lower())] if len(word) > 1 else []
    if len(begun) == 1:
        return by_lower[begun[0]]
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=NEAR)
    return by_lower[found[0]] if found else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
