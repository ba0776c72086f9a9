"""Read values from JSON with the expected type. A value of another type counts as missing.

Files of earlier and later versions are read with these functions: unknown keys are ignored, missing ones get a default.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar


def json_object(text: str | bytes) -> dict[str, object]:
    """The JSON object in ``text``. Raises ValueError for anything else."""
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object; got a {type(value).__name__}")
    return value


def written_json(content: bytes | str) -> object:
    """The JSON in a file that a person may have written, in UTF-8, with or without a byte order mark.

    Raises ValueError, in words, for text that is no JSON, and for a key that an object has twice: Python's own reader
    would silently take the last one.
    """
    try:
        read = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
        return json.loads(read, object_pairs_hook=_each_key_once)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return found


def text(values: Mapping[str, object], key: str, default: str = "") -> str:
    """The text at ``key``, or ``default``."""
    value = values.get(key)
    return value if isinstance(value, str) else default


def text_or_none(values: Mapping[str, object], key: str) -> str | None:
    """The text at ``key``, or None."""
    value = values.get(key)
    return value if isinstance(value, str) else None


def number_or_none(values: Mapping[str, object], key: str) -> float | None:
    """The number at ``key``, or None. True and False are no numbers."""
    value = values.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def number(values: Mapping[str, object], key: str, default: float = 0.0) -> float:
    """The number at ``key``, or ``default``."""
    found = number_or_none(values, key)
    return default if found is None else found


def whole_number(values: Mapping[str, object], key: str, default: int = 0) -> int:
    """The whole number at ``key``, or ``default``."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def whole_number_or_none(values: Mapping[str, object], key: str) -> int | None:
    """The whole number at ``key``, or None."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(values: Mapping[str, object], key: str) -> bool:
    """Whether the value at ``key`` is true."""
    return values.get(key) is True


def mapping(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    """The object at ``key``, or an empty one."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def texts(values: Mapping[str, object], key: str) -> list[str]:
    """The texts in the list at ``key``."""
    value = values.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, (list, tuple)) else []


def objects(values: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """The objects in the list at ``key``."""
    value = values.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Record = TypeVar("Record", bound=_Dataclass)
_BY_ANNOTATION: Mapping[str, Callable[[Mapping[str, object], str], object]] = {
    "str": text,
    "str | None": text_or_none,
    "int": whole_number,
    "int | None": whole_number_or_none,
    "float": number,
    "float | None": number_or_none,
    "bool": flag,
    "list[str]": texts,
    "tuple[str, ...]": lambda values, key: tuple(texts(values, key)),
}


def read_fields(record: type[Record], values: Mapping[str, object], **others: object) -> Record:
    """A dataclass from a file's values: each field by its type. ``others``: fields that were read in another way."""
    left = [field for field in dataclasses.fields(record) if field.name not in others]
    return record(**{field.name: _BY_ANNOTATION[str(field.type)](values, field.name) for field in left}, **others)
