"""How a folder of images is read: which files are images, and which part trains and which validates.

The rules are the same for training and packing. Files that are not read are counted or refused. The parts are known by
the names of folders, or of files in a container.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from bigbatch.train_loop.config import ConfigError

EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip
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
    total = left_out.total()
    return f"{total:,} file{'s' * (total != 1)} left out: {', '.join(f'{kind} {count:,}' for kind, count in kinds)}"


def visible_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """A folder's entries without hidden ones, such as ``.ipynb_checkpoints`` or ``._photo.jpg``. Raises ConfigError."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"the data must be readable; got {error}. Check the folder's permissions.") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one.

    Raises ConfigError for a broken link, e.g. to a file system that is not mounted, and for a circular one.
    """
    try:
        if entry.is_symlink():
            os.stat(entry.path)
        return entry.is_dir()
    except OSError as error:
        raise ConfigError(
            f"what the data hold must be there; got {entry.path!r}: {error.strerror}. Mount the target of the link or "
            f"remove it; list all: find {os.path.dirname(entry.path)!r} -xtype l"
        ) from None


def images_below(folder: str, left_out: LeftOut, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Each image below a folder: its path from there, after ``prefix``, and its entry. Not in order.

    It also looks into folders below, because Tiny ImageNet keeps its images in ``<class>/images``, and linked folders.

    Args:
        left_out: counts each file that is not read.
    """
    for entry in visible_entries(folder):
        if is_folder(entry):
            yield from images_below(entry.path, left_out, f"{prefix}{entry.name}/")
        elif is_image(entry.name) and entry.is_file():
            yield prefix + entry.name, entry
        else:
            note_left_out(left_out, entry.name)


TRAIN_FOLDERS = ("train",)
VAL_FOLDERS = ("val", "validation", "valid", "test")
TEST = "test"
"""This part validates only if no other does; with ``data.val_part`` it is not used."""
PARTS = TRAIN_FOLDERS + VAL_FOLDERS
HELD = "--val-part holds images out where a data set has none to validate on"


def find_layout(root: str, val_part: float) -> tuple[str, str | None, tuple[str, ...]] | None:
    """The folders that hold a folder for each class, of training and of validation, and notes; None if ``root`` has
    neither train/ nor folders that may be classes. None for validation: training images are held out.

    Raises ConfigError if there are no images to validate on, or both such images and ``val_part``.
    """
    folders = sorted(entry.name for entry in visible_entries(root) if is_folder(entry))
    train, val = choose_parts(root, folders, val_part)
    if train is None and (not folders or val is not None or TEST in folders):
        return None
    if val is None and not val_part:
        lacks = f"{'/, '.join(VAL_FOLDERS)}/" if train else f"{TRAIN_FOLDERS[0]}/"
        some = ", ".join(f"{printable(name)}/" for name in folders[:5]) + (", …" if len(folders) > 5 else "")
        raise ConfigError(
            f"an image folder needs {lacks}; got {some} in {root!r}. Make such a folder with <class>/*.jpg there, or "
            "write --val-part 10% to hold training images out."
        )
    others = [f"{printable(name)}/" for name in folders if train is not None and name not in (train, val)]
    paths = (os.path.join(root, train) if train else root, os.path.join(root, val) if val else None)
    return (*paths, part_notes(val, val_part, others))


def choose_parts(root: str, names: Collection[str], val_part: float) -> tuple[str | None, str | None]:
    """The part that trains and the one that validates. Raises ConfigError for validation images beside ``val_part``."""
    train = next((name for name in TRAIN_FOLDERS if name in names), None)
    val = next((name for name in VAL_FOLDERS if name in names and not (val_part and name == TEST)), None)
    if val is not None and val_part:
        raise ConfigError(
            f"{HELD}; got {val_part:g} for {root!r}, which has {val}/. Leave --val-part out "
            "(or write --set data.val_part=0), or name its training folder alone."
        )
    return train, val


def part_notes(val: str | None, val_part: float, others: Sequence[str]) -> tuple[str, ...]:
    """What a reader of a plan must know about the parts.

    Args:
        others: parts that are not read.
    """
    notes = []
    if val == TEST:
        notes.append("test/ validates, as there is no val/; --val-part 10% would hold training images out instead")
    if val is None:
        notes.append(f"{100 * val_part:g} % of each class's training images are held out to validate")
    if others:
        notes.append(f"left out: {', '.join(others)}")
    return tuple(notes)


def check_same_classes(train: str, train_names: Collection[str], val: str, val_names: Collection[str]) -> None:
    """Raise ConfigError, naming the part, if one of them lacks a class of the other."""
    for there, here, part in ((train_names, val_names, val), (val_names, train_names, train)):
        if missing := sorted(set(there) - set(here)):
            raise ConfigError(
                f"training and validation need the same classes; got no {missing[0]!r} in {part!r} "
                f"({len(missing)} missing). Add {'it' if len(missing) == 1 else 'them'} or remove the other half."
            )
