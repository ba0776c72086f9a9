"""Whose copy an export replaces: two studies may have one name, and one must not take the place of the other."""

from __future__ import annotations

from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.storage.description import STUDY_FILE


def check_origin(option: str, target: str, name: str, earlier: str, folder: Path) -> None:
    """Raise ConfigError if ``target`` holds the copy of another study of the same name.

    A copy of the folder's study, or of a folder that has gone because the study was moved, may be replaced.

    Args:
        earlier: the folder that was copied before, as that export noted it; empty: not known.
        folder: the study's.
    """
    if not earlier or Path(earlier).resolve() == folder.resolve() or not (Path(earlier) / STUDY_FILE).exists():
        return
    raise ConfigError(
        f"--{option} holds one study of each name; {target!r} has a copy of {name!r} from {earlier!r}. "
        f"Write another --{option}."
    )
