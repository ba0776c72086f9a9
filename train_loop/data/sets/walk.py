"""Which files of a folder are images. One rule for training and packing; what is not read is counted or refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bigbatch.train_loop.config import ConfigError

EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip
SAY_KINDS = 6
"""Kinds of files that a line names."""

LeftOut = Counter[str]
"""How many files are not read, by suffix."""


def is_image(name: str) -> bool:
    """Whether a file of this name is read."""
    return name.lower().endswith(EXTENSIONS)


def note_left_out(left_out: LeftOut, name: str) -> None:
    """Count a file that is not read."""
    kind = os.path.splitext(name)[1].lower() or "without suffix"
    left_out[printable(kind)] += 1


def printable(name: str) -> str:
    """The name of a file as a terminal can show it: bytes that are no UTF-8 and line breaks are written as escapes."""
    return name if name.isprintable() else ascii(name)


def left_out_in_words(left_out: LeftOut) -> str:
    """``18 files left out: .gif 15, .txt 3``; empty if there is none."""
    if not left_out:
        return ""
    kinds = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    some = [f"{kind} {count:,}" for kind, count in kinds[:SAY_KINDS]]
    if len(kinds) > SAY_KINDS:
        some.append(f"others {sum(count for _, count in kinds[SAY_KINDS:]):,}")
    total = left_out.total()
    return f"{total:,} file{'s' * (total != 1)} left out: {', '.join(some)}"


def visible_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """A folder's entries without hidden ones, such as ``.ipynb_checkpoints`` or ``._photo.jpg``. Raises ConfigError."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"the data must be readable; got {error}. Check the folder's permissions.") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one.

    Raises ConfigError for a link to nothing, as of a file system that is not mounted, and for one that leads to a
    folder around it: whoever follows it never ends.
    """
    try:
        found = entry.is_dir()
        if entry.is_symlink():
            os.stat(entry.path)
            if found:
                _refuse_circle(entry)
    except OSError as error:
        if not entry.is_symlink():
            raise ConfigError(f"the data must be readable; got {error}. Check the file system.") from None
        raise ConfigError(
            f"a link in the data must lead to something; got {entry.path!r} to {os.readlink(entry.path)!r}: "
            f"{error.strerror}. Mount its target or remove it; list all: find {os.path.dirname(entry.path)!r} -xtype l"
        ) from None
    return found


def _refuse_circle(entry: os.DirEntry[str]) -> None:
    for parent in Path(entry.path).parents:
        if os.path.samefile(parent, entry.path):
            raise ConfigError(
                f"a link in the data must not lead to a folder around it; got {entry.path!r} to {str(parent)!r}. "
                "Remove the link."
            )


def images_below(folder: str, left_out: LeftOut, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Each image below a folder: its path from there, after ``prefix``, and its entry. Not in order.

    Also in folders below, for Tiny ImageNet keeps its images in ``<class>/images``, and in linked ones.

    Args:
        left_out: is told of each file that is not read.
    """
    for entry in visible_entries(folder):
        if is_folder(entry):
            yield from images_below(entry.path, left_out, f"{prefix}{entry.name}/")
        elif is_image(entry.name) and entry.is_file():
            yield prefix + entry.name, entry
        else:
            note_left_out(left_out, entry.name)
