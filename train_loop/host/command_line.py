"""Shared parts of several command lines: checks with one-line errors, options, and the progress line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bigbatch.base.command_line import parse_fraction
from bigbatch.train_loop.config import ConfigError

PAGE_BEGINS = b"<!doctype html"


def check_writable(option: str, folder: Path) -> None:
    """Raise ConfigError, naming ``option``, unless ``folder`` is writable or can be made."""
    try:
        # A broken link exists, too, and no folder can be made in its place.
        parent = next(p for p in (folder, *folder.parents) if p.is_symlink() or p.exists())
        possible = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        reason = f"{str(parent)!r} is {'not writable' if parent.is_dir() else 'no folder'}"
    except OSError as error:  # a name that is too long
        possible, reason = False, str(error.strerror)
    if not possible:
        raise ConfigError(
            f"{option} must be a writable folder; got {str(folder)!r}: {reason}. Write {option} with another folder."
        )


def check_page(option: str, path: Path) -> None:
    """Raise ConfigError, naming ``option``, if a page at ``path`` would replace a file that is not a page.

    A typing error must not destroy a study.json or a journal: there is no other copy of them.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(len(PAGE_BEGINS))
    except OSError:  # there is no file yet, or the writer will report why it cannot write
        return
    if begins and begins.lower() != PAGE_BEGINS:
        raise ConfigError(
            f"{option} replaces only an HTML page; got {str(path)!r}, which is another file. Write another name."
        )


def add_part_options(add: Callable[..., object]) -> None:
    """``--subset`` and ``--val-part``: which parts of the images train and validate."""
    add(
        "--subset",
        type=parse_fraction,
        metavar="PART",
        help="train on this part of each class, e.g. 10%%; validate on all",
    )
    add(
        "--val-part",
        type=parse_fraction,
        metavar="PART",
        help="validate on this part of each class, e.g. 10%%, if an image folder has no validation images",
    )


def with_options(changes: Mapping[str, object], given: Mapping[str, tuple[str, object]]) -> dict[str, object]:
    """The keys of ``--set`` together with those of options: option → key and value, which is None if it is not given.

    Raises ConfigError if both set one.
    """
    keys = {option: (key, value) for option, (key, value) in given.items() if value is not None}
    for option, (key, _) in keys.items():
        if key in changes:
            raise ConfigError(f"a key is set once; got {option} and --set {key}. Keep {option}.")
    return {**changes, **dict(keys.values())}


def with_parts(changes: dict[str, object], subset: float | None, val_part: float | None) -> dict[str, object]:
    """The keys of ``--set`` together with those of ``add_part_options``. Raises ConfigError if both set one."""
    return with_options(changes, {"--subset": ("data.subset", subset), "--val-part": ("data.val_part", val_part)})


class ProgressLine:
    """How far a command is: a line on stderr every ``every_s``."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._next = every_s, time.monotonic() + every_s

    def show(self, line: str) -> None:
        """Show the line, if it is time for one."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            print(line, file=sys.stderr, flush=True)
