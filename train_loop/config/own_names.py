"""``FILE.py:FUNCTION``: a function in a Python file of the user's, as options and configurations name it. No torch."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from bigbatch.train_loop.config.own_folder import python_files
from bigbatch.train_loop.config.plug_ins import is_own
from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.config.train_config import TrainConfig

ABSOLUTE_KEYS = ("model.name", "data.name", "loss", "optimizer.name", "trainable.name")


@dataclass(frozen=True)
class OwnName:
    """A function in a file."""

    path: Path
    """Absolute."""
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


def own_words(config: TrainConfig) -> dict[str, str]:
    """The configuration's users' files, ``FILE.py:FUNCTION``, by key: ``model.name``, ``loss``, ``metrics``, …"""
    words = {
        "model.name": config.model.name,
        "data.name": config.data.name,
        "loss": config.loss,
        "optimizer.name": config.optimizer.name,
        "trainable.name": config.trainable.name,
        **{f"metrics[{number}]": word for number, word in enumerate(config.metrics)},
    }
    return {key: word for key, word in words.items() if is_own(word)}


def with_absolute_words(config: TrainConfig, folder: Path | None = None) -> TrainConfig:
    """The configuration with absolute paths of the user's files. Raises ConfigError for one that is not there.

    ``folder``: relative paths are relative to it if the file is there, else to the current folder.
    """
    words = own_words(config)
    if not words and not config.model.pretrained:
        return config
    if folder is not None:
        words = {key: _within(folder, word) for key, word in words.items()}
    changes: dict[str, object] = {key: absolute(key, word) for key, word in words.items() if key in ABSOLUTE_KEYS}
    if any(key.startswith("metrics") for key in words):
        metrics = [words.get(f"metrics[{number}]", word) for number, word in enumerate(config.metrics)]
        changes["metrics"] = [absolute("metrics", word) for word in metrics]
    if config.model.pretrained and os.path.exists(os.path.expanduser(config.model.pretrained)):
        changes["model.pretrained"] = os.path.abspath(os.path.expanduser(config.model.pretrained))
    return config.replace_keys(changes) if changes else config


def _within(folder: Path, word: str) -> str:
    path, _, function = word.rpartition(":")
    return f"{folder / path}:{function}" if (folder / path).is_file() else word


def own_name(key: str, word: str) -> OwnName:
    """What ``word`` names; a relative path is relative to the current folder.

    Args:
        key: the option or the configuration key that holds it, for messages.

    Raises ConfigError for a file without a function's name and for a file that is not there.
    """
    path, colon, function = word.rpartition(":")
    if not colon or not path.endswith(".py") or not function.isidentifier():
        path = path if colon and path.endswith(".py") else word
        raise ConfigError(f"{key} must name a function of the file; got {word!r}. Write {path}:FUNCTION.")
    found = Path(os.path.abspath(os.path.expanduser(path)))
    if not found.is_file():
        near = difflib.get_close_matches(found.name, python_files(found.parent), n=1)
        fix = f"Did you mean '{Path(path).parent / near[0]}:{function}'?" if near else "Check the path."
        raise ConfigError(f"{key} must name a Python file that is there; got {word!r}. {fix}")
    return OwnName(found, function)


def absolute(key: str, word: str) -> str:
    """``word`` with an absolute path if it names a function of a file; any other word as it is.

    A run's processes have other current folders. Raises ConfigError as ``own_name``.
    """
    return str(own_name(key, word)) if is_own(word) else word


def source_text(key: str, name: OwnName) -> str:
    """The text of the file. Raises ConfigError if it cannot be read."""
    try:
        return name.path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"{key} must name a Python file that can be read; got '{name.path}' ({reason}). Check the file."
        ) from None
