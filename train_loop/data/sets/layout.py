"""Which part of a data set trains and which validates: by the names of its folders, or of what a container holds."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.sets.walk import is_folder, printable, visible_entries

TRAIN_FOLDERS = ("train",)
VAL_FOLDERS = ("val", "validation", "valid", "test")
TEST = "test"
"""Validates only where nothing else does; with ``data.val_part`` it is left alone."""
PARTS = TRAIN_FOLDERS + VAL_FOLDERS
HELD = "--val-part holds images out where a data set has none to validate on"


class ClassFolders(NamedTuple):
    """The folders that hold a folder for each class."""

    train: str
    val: str | None
    """None: training images are held out."""
    notes: tuple[str, ...]


def find_layout(root: str, val_part: float) -> ClassFolders | None:
    """Where the classes of an image folder are; None if it has neither train/ nor folders that may be classes.

    Raises ConfigError where there are no images to validate on, or both such images and ``val_part``.
    """
    folders = sorted(entry.name for entry in visible_entries(root) if is_folder(entry))
    train, val = choose_parts(root, folders, val_part)
    if train is None and not has_classes(root, folders):
        return None
    if val is None and not val_part:
        lacks = VAL_FOLDERS if train else TRAIN_FOLDERS
        some = ", ".join(f"{printable(name)}/" for name in folders[:5]) + (", …" if len(folders) > 5 else "")
        raise ConfigError(
            f"an image folder needs {' or '.join(f'{name}/' for name in lacks)}; got {some} in {root!r}. Make "
            f"{lacks[0]}/<class>/*.jpg there, or write --val-part 10% to hold training images out."
        )
    others = [f"{printable(name)}/" for name in folders if train is not None and name not in (train, val)]
    paths = (os.path.join(root, train) if train else root, os.path.join(root, val) if val else None)
    return ClassFolders(*paths, part_notes(val, val_part, others))


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


def has_classes(root: str, folders: Sequence[str]) -> bool:
    """Whether folders of a root may be classes: none is a part of a data set, and none holds one."""
    return bool(folders) and not any(
        name in PARTS or any(os.path.isdir(os.path.join(root, name, part)) for part in PARTS) for name in folders
    )


def check_same_classes(train: str, train_names: Collection[str], val: str, val_names: Collection[str]) -> None:
    """Raise ConfigError, naming the part, if one of them lacks a class of the other."""
    for there, here, part in ((train_names, val_names, val), (val_names, train_names, train)):
        if missing := sorted(set(there) - set(here)):
            raise ConfigError(
                f"training and validation need the same classes; got no {missing[0]!r} in {part!r} "
                f"({len(missing)} missing). Add {'it' if len(missing) == 1 else 'them'} or remove the other half."
            )
