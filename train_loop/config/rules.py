"""Checks of configuration values, and the error that they raise.

Keys below ``OPEN_SECTIONS`` are open: they are options of a user's own components, such as ``model.options.width``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from bigbatch.base.command_line import did_you_mean


class ConfigError(ValueError):
    """A configuration that cannot be trained; the message names rule, value and fix."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows (IPython calls it): the line alone, for wherever it was raised, the input is wrong."""
        return [f"{type(self).__name__}: {self}"]


class ConflictError(ConfigError):
    """Two values that do not go together, although each may be right with another value."""


def require(ok: bool, rule: str, value: object, fix: str) -> None:
    """Raise ConfigError unless ``ok``. Its message has the rule, the value met, and what to write instead."""
    if not ok:
        raise ConfigError(f"{rule}; got {value!r}. {fix}")


def require_one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``allowed``; the message names the nearest one."""
    allowed = tuple(allowed)
    if value not in allowed:
        hint = did_you_mean(str(value), allowed)
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}. {hint}")


def require_in_range(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Raise ConfigError unless ``value`` is a finite number from ``low`` to ``high``.

    ``open_low``: ``low`` itself is refused.
    """
    above = value > low if open_low else value >= low
    ok = math.isfinite(value) and above and value <= high
    interval = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    require(ok, f"{name} must be {interval}", value, f"Set {name} inside that range.")


OptionValue = bool | int | float | str | None | list["OptionValue"]
"""What JSON has, without objects: an option is one value, or a list."""

OPEN_SECTIONS = ("model.options", "data.options", "optimizer.options", "loss_options")
"""Keys below these are the user's: ``model.options.width`` is the argument ``width`` of the function that makes the
model."""


class Options(dict[str, "OptionValue"]):
    """Keyword arguments for a user's function: name → JSON value. Not to be changed; hashable, as sections are."""

    def __hash__(self) -> int:  # type: ignore[override]
        # Values may be lists, which have no hash.
        return hash(json.dumps(self, sort_keys=True))


def is_open(key: str) -> bool:
    """Whether ``key`` is below an open section, and its last part can be an argument's name."""
    section, _, name = key.rpartition(".")
    return section in OPEN_SECTIONS and name.isidentifier()


def pythons_own(value: Any) -> Any:
    """Numbers and arrays of NumPy's or torch's as Python's own: a user's space may compute with them. Anything else as
    it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def read_options(key: str, values: object) -> Options:
    """JSON's object as options. Raises ConfigError for other values, names that cannot be arguments, objects within."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key} must be an object of arguments; got {values!r}. Write {key}.NAME=VALUE.")
    for name in values:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError(f"{key} must have names of arguments; got {name!r}. Write e.g. {key}.width=64.")
    return Options({name: _value(f"{key}.{name}", value) for name, value in values.items()})


def _value(key: str, value: object) -> OptionValue:
    """The value as JSON returns it: tuples are lists, also within lists."""
    value = pythons_own(value)
    if isinstance(value, (list, tuple)):
        return [_value(key, one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"{key} must be a number, a word, true, false, null or a list of them; got {value!r}. Write one.")


class Section:
    """A dataclass of a configuration. It converts or refuses its values, so that each field has its type."""

    _prefix = ""  # of its keys; an annotation would make it a field

    def __init_subclass__(cls, prefix: str = "") -> None:
        cls._prefix = prefix

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in field_types(cls).items():
            key, value = self._prefix + name, getattr(self, name)
            if not is_section(kind):
                object.__setattr__(self, name, coerced(kind, value, key, getattr(cls, name, None)))
            elif not isinstance(value, kind):
                raise ConfigError(
                    f"{key} must be of the type {kind.__name__}; got {value!r}. "
                    f"Write TrainConfig().replace_keys({{{key!r}: …}})."
                )


def is_section(kind: object) -> TypeGuard[type[Section]]:
    """Whether a field's type is a section."""
    return isinstance(kind, type) and issubclass(kind, Section)


@functools.cache
def field_types(cls: type) -> Mapping[str, Any]:
    """A section's fields with their types. Reading them takes a millisecond, and a search makes many configurations."""
    return types.MappingProxyType(typing.get_type_hints(cls))


def coerced(kind: object, value: object, key: str, default: object) -> object:
    """JSON's value as the field's type; int → float is the only silent change. Raises ConfigError for another one."""
    value = pythons_own(value)
    if kind is Options:
        return read_options(key, value)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(coerced(typing.get_args(kind)[0], v, key, default) for v in value)
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        # 1e3 is a float to JSON, but a whole number to whoever typed it.
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):  # a whole number of more than 308 digits
                return float(value)
    elif kind is str and isinstance(value, str):
        return value
    raise _of_another_type(kind, value, key, default)


def _of_another_type(kind: object, value: object, key: str, default: object) -> ConfigError:
    words: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    word = words.get(kind, "a list of words" if kind == tuple[str, ...] else "a list of numbers")
    if default == ():  # it would show nobody how a list is written
        default = [30, 60] if kind == tuple[float, ...] else ["mine.py:iou"]
    return ConfigError(f"{key} must be {word}; got {value!r}. Write {key}={json.dumps(default)}.")


def is_own(word: str) -> bool:
    """Whether a word names a file of the user's: ``net.py``, ``net.py:unet``, ``../own/net.py:unet``."""
    path, colon, function = word.rpartition(":")
    return word.endswith(".py") or (bool(colon) and path.endswith(".py"))


def shown_name(word: str) -> str:
    """A component's name for tables and titles: without the folder of a user's file."""
    return word.replace("\\", "/").rpartition("/")[2] if is_own(word) else word


def check_component(key: str, word: str, built_in: Iterable[str]) -> None:
    """Raise ConfigError, with the nearest name, unless ``word`` is built in, or a user's file."""
    if not is_own(word):
        require_one_of(key, word, built_in)
