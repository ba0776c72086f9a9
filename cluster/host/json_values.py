"""Values read from JSON, with the type that the reader expects: another type counts as a value that is not there.

What an earlier or a later version wrote is read with these: unknown keys are never asked for, and missing ones have a
default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping


def json_object(text: str | bytes) -> dict[str, object]:
    """The JSON object in ``text``. Raises ValueError for anything else."""
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object; got a {type(value).__name__}")
    return value


def text(values: Mapping[str, object], key: str, default: str = "") -> str:
    value = values.get(key)
    return value if isinstance(value, str) else default


def text_or_none(values: Mapping[str, object], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def number_or_none(values: Mapping[str, object], key: str) -> float | None:
    """A number that is not a truth value."""
    value = values.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def number(values: Mapping[str, object], key: str, default: float = 0.0) -> float:
    found = number_or_none(values, key)
    return default if found is None else found


def whole_number(values: Mapping[str, object], key: str, default: int = 0) -> int:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def whole_number_or_none(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(values: Mapping[str, object], key: str) -> bool:
    return values.get(key) is True


def mapping(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    """An object within the object; an empty one where there is none."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def texts(values: Mapping[str, object], key: str) -> list[str]:
    """Those of a list that are texts."""
    value = values.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
