"""Keys that are open: the options of a user's own components, such as ``model.options.width``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bigbatch.train_loop.config.rules import ConfigError

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


def read_options(key: str, values: object) -> Options:
    """JSON's object as options. Raises ConfigError for anything else, for names that no argument has, for objects."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key} must be an object of arguments; got {values!r}. Write {key}.NAME=VALUE.")
    for name in values:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError(f"{key} must have names of arguments; got {name!r}. Write e.g. {key}.width=64.")
    return Options({name: _value(f"{key}.{name}", value) for name, value in values.items()})


def _value(key: str, value: object) -> OptionValue:
    """As JSON gives it back: tuples are lists, also within lists."""
    if isinstance(value, (list, tuple)):
        return [_value(key, one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"{key} must be a number, a word, true, false, null or a list of them; got {value!r}. Write one.")
