"""Words that name a component of the user's own: a function in a file. No torch here."""

from __future__ import annotations

from collections.abc import Iterable

from bigbatch.train_loop.config.rules import require_one_of


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
