"""Checks that several command lines share. An error is one line."""

from __future__ import annotations

import os
from pathlib import Path

from bigbatch.cluster.host.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError

__all__ = ["INTERRUPTED", "WRONG_INPUT", "OneLineParser", "check_page", "check_writable", "with_subset"]

PAGE_BEGINS = b"<!doctype html"


def check_writable(option: str, folder: Path) -> None:
    """Raise ConfigError, naming ``option``, unless ``folder`` is writable or can be made."""
    try:
        parent = next(p for p in (folder, *folder.parents) if p.exists())
        possible = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        reason = f"{str(parent)!r} cannot"
    except OSError as error:  # a name that is too long
        possible, reason = False, str(error.strerror)
    if not possible:
        raise ConfigError(
            f"{option} must be a writable folder; got {str(folder)!r}: {reason}. Write {option} with another folder."
        )


def check_page(option: str, path: Path) -> None:
    """Raise ConfigError, naming ``option``, if a page at ``path`` would replace a file that is none.

    A slip of the hand must not cost a study.json or a journal: nobody else has a copy of them.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(len(PAGE_BEGINS))
    except OSError:  # there is nothing yet, or whoever writes will say why that cannot be
        return
    if begins and begins.lower() != PAGE_BEGINS:
        raise ConfigError(
            f"{option} replaces only an HTML page; got {str(path)!r}, which is another file. Write another name."
        )


def with_subset(changes: dict[str, object], subset: float | None) -> dict[str, object]:
    """The keys of ``--set`` together with that of ``--subset``. Raises ConfigError if both set it."""
    if subset is None:
        return changes
    if "data.subset" in changes:
        raise ConfigError("a key is set once; got --subset and --set data.subset. Keep --subset.")
    return {**changes, "data.subset": subset}
