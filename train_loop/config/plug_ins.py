"""Names of components that installed packages add: entry points, and what their modules register. No torch here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from bigbatch.train_loop.config.rules import ConfigError, require_one_of

MODELS, LOSSES, OPTIMIZERS_GROUP = "bigbatch.models", "bigbatch.losses", "bigbatch.optimizers"
METRICS, DATA = "bigbatch.metrics", "bigbatch.data"
"""The groups of entry points."""

Component = Callable[..., object]

_registered: dict[tuple[str, str], Component] = {}


def is_own(word: str) -> bool:
    """Whether a word names a file of the user's: ``net.py``, ``net.py:unet``, ``../own/net.py:unet``."""
    path, colon, function = word.rpartition(":")
    return word.endswith(".py") or (bool(colon) and path.endswith(".py"))


def shown_name(word: str) -> str:
    """A component's name for tables and titles: without the folder of a user's file."""
    return word.replace("\\", "/").rpartition("/")[2] if is_own(word) else word


def register(group: str, name: str, component: Component) -> None:
    """Give ``component`` a name in this process. A later one of the same name replaces it."""
    if not name.strip() or is_own(name):
        raise ConfigError(f"a registered component needs a name; got {name!r}. Write e.g. register_model('unet').")
    _registered[group, name] = component


def plug_in_names(group: str) -> list[str]:
    """All names that packages add to a group, sorted. Imports the modules that register names with decorators.

    Raises ConfigError for such a module that cannot be imported.
    """
    found = {point.name: point for point in _entry_points(group, tuple(sys.path))}
    for point in found.values():
        if _is_module(point):
            _load(point)
    named = {name for name, point in found.items() if not _is_module(point)}
    return sorted(named | {name for one, name in _registered if one == group})


def is_plug_in(group: str, name: str) -> bool:
    """Whether a package adds this name. Imports nothing if an entry point has it."""
    points = _entry_points(group, tuple(sys.path))
    return (
        (group, name) in _registered
        or any(p.name == name and not _is_module(p) for p in points)
        or (any(_is_module(p) for p in points) and name in plug_in_names(group))
    )


def plug_in(group: str, name: str) -> Component | None:
    """The component of that name; None if no package adds it. Raises ConfigError if its package cannot be imported."""
    if not is_plug_in(group, name):
        return None
    for point in _entry_points(group, tuple(sys.path)):
        if point.name == name and not _is_module(point) and (group, name) not in _registered:
            _registered[group, name] = _load(point)
    return _registered[group, name]


def check_component(key: str, word: str, built_in: Iterable[str], group: str) -> None:
    """Raise ConfigError, with the nearest name, unless ``word`` is built in, a user's file, or of a package."""
    built_in = tuple(built_in)
    if word not in built_in and not is_own(word) and not is_plug_in(group, word):
        require_one_of(key, word, (*built_in, *plug_in_names(group)))


@functools.lru_cache(maxsize=16)
def _entry_points(group: str, _path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Those of the packages on Python's path. Reading them takes some 20 ms."""
    return tuple(metadata.entry_points(group=group))


def _is_module(point: metadata.EntryPoint) -> bool:
    return ":" not in point.value


def _load(point: metadata.EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"a plug-in must be importable; got {point.name} = {point.value} of {point.group} ({reason}). "
            "Repair or uninstall its package."
        ) from None
