"""List the images of a source, with part, class and place, without unpacking anything.

A source is a folder tree, or in containers (``containers.py``): tars, Hugging Face Parquet files or the CIFAR-10
pickles. Each is listed as *entries*, a name such as ``train/ant/7.jpg`` and a place to read; names then decide part and
class.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing import containers
from bigbatch.train_loop.data.packing.containers import Labelled, SourceEntry
from bigbatch.train_loop.data.sets.layout import (
    EXTENSIONS,
    PARTS,
    LeftOut,
    check_same_classes,
    choose_parts,
    is_folder,
    is_image,
    left_out_in_words,
    note_left_out,
    part_notes,
    visible_entries,
)
from bigbatch.train_loop.data.sets.scan import Listing, scan_folder
from bigbatch.train_loop.data.sets.subset import hold_out

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
WORDNET = re.compile(r"n\d{8}(?=_)")
"""ImageNet's training images are named for their class: ``n01440764_10026.JPEG``."""


class PackItem(NamedTuple):
    """An image to pack."""

    entry: SourceEntry
    label: int


@dataclass(frozen=True)
class PackSource:
    """All images of a source."""

    path: str
    kind: str
    class_names: tuple[str, ...]
    train: list[PackItem]
    val: list[PackItem]
    notes: tuple[str, ...] = ()
    """What is left out, and what validates."""

    def fingerprint(self) -> str:
        """Of names, labels and sizes, and of the containers' times: another one, another source."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for items in (self.train, self.val):
            for entry, label in items:
                # Sizes tell that a file was exchanged; without surrogateescape a name that is no UTF-8 would end the
                # pack.
                digest.update(f"{entry.name}\0{label}\0{entry.size}\0".encode(errors="surrogateescape"))
        files = {item.entry.file for items in (self.train, self.val) for item in items if item.entry.offset >= 0}
        for file in sorted(files):
            digest.update(f"{os.path.basename(file)}\0{os.stat(file).st_mtime_ns}\0".encode())
        return digest.hexdigest()


def find_source(path: str, val_part: float = 0.0) -> PackSource:
    """List ``path``. Raises ConfigError if there is no image, or the classes are unknown.

    Args:
        val_part: 0 to 1: the part of each class to hold out if the source has no validation images.
    """
    root = os.path.abspath(os.path.expanduser(path))
    if not os.path.exists(root):
        raise ConfigError(f"the source must exist; got {path!r}. Write a folder, a tar or a Parquet file.")
    try:
        listed = _listed(root)
        if listed is None:
            return _image_folder(root, _folder_of_classes(root), val_part)
        return _by_parts(root, listed, val_part)
    except (OSError, tarfile.TarError, ValueError, EOFError, pickle.UnpicklingError) as error:
        # A ValueError, too, but one that already says what to do.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the source must be readable; got {path!r}: {error}. Check the file.") from None


def read_entry(entry: SourceEntry) -> bytes:
    """The image file's bytes; a pickle's pixels as PNG."""
    if entry.offset < 0 or entry.file.endswith(".tar"):
        return containers.read_bytes(entry)
    if entry.file.endswith(".parquet"):
        return containers.parquet_image(entry.file, entry.offset)
    return containers.cifar_image(entry.file, entry.offset)


# --- image folders ---


def _folder_of_classes(root: str) -> str:
    """The folder with train/<class>/ or <class>/ that training reads too: the source, or the only folder in it."""
    folders = [entry for entry in visible_entries(root) if is_folder(entry)]
    one = len(folders) == 1 and folders[0].name not in PARTS
    return _folder_of_classes(folders[0].path) if one else root


def _image_folder(root: str, folder: str, val_part: float) -> PackSource:
    """The images that training on the folder itself would read, in its order."""
    scan = scan_folder(folder, val_part)
    train, val = _items_of(folder, scan.train), _items_of(folder, scan.val)
    return PackSource(root, "folder", scan.class_names, train, val, scan.notes)


def _items_of(folder: str, listing: Listing) -> list[PackItem]:
    items = []
    for index, label in enumerate(listing.labels.tolist()):
        path = listing.path(index)
        items.append(PackItem(SourceEntry(os.path.relpath(path, folder), path, -1, os.stat(path).st_size), label))
    return items


# --- everything else: names → part and class ---


class _Listed(NamedTuple):
    """The images of a source, and what of it is left out."""

    kind: str
    images: Labelled
    names: tuple[str, ...] | None
    """Of the classes, if the source states them; else they are sorted."""
    left_out: LeftOut
    unread: tuple[str, ...] = ()
    """Parts."""


def _listed(root: str) -> _Listed | None:
    """What a source of files holds; None for a folder of images."""
    files = [root] if os.path.isfile(root) else [e.path for e in visible_entries(root) if e.is_file()]
    parquet = sorted(file for file in files if file.endswith(".parquet"))
    if not parquet and os.path.isdir(os.path.join(root, "data")):
        parquet = sorted(e.path for e in visible_entries(os.path.join(root, "data")) if e.name.endswith(".parquet"))
    if parquet:
        wanted = containers.wanted_files(parquet)
        unread = ("test/",) if len(wanted) < len(parquet) else ()
        return _Listed("parquet", *containers.parquet_entries(wanted), Counter(), unread)
    pickles = next((p for p in (root, os.path.join(root, "cifar-10-batches-py")) if containers.is_cifar(p)), None)
    if pickles:
        return _Listed("cifar10-pickle", *containers.cifar_entries(pickles), Counter())
    # ImageNet's development kit is a tar beside those of the images, and holds none.
    tar_files = sorted(file for file in files if file.endswith(ARCHIVES) and "devkit" not in os.path.basename(file))
    if tar_files:
        left_out: LeftOut = Counter()
        entries = [entry for file in tar_files for entry in containers.tar_entries(file, left_out)]
        if any(entry.name.endswith(".cls") for entry in entries):
            return _Listed("webdataset", containers.webdataset_entries(entries, left_out), None, left_out)
        return _Listed("tar", _by_name(root, entries, left_out), None, left_out)
    if os.path.isfile(root):
        raise ConfigError(f"the source must be a folder, a tar or a Parquet file; got {root!r}. Unpack or convert it.")
    return None


def _by_name(root: str, entries: Iterable[SourceEntry], left_out: LeftOut) -> Labelled:
    """``…/train/ant/7.jpg``; without such a part, the folder is the class, or ImageNet's own file names tell it.

    The class is empty where nothing tells it: that may be a test part, which is not packed. Raises ConfigError for an
    empty folder of a class (``train/bee/``).
    """
    found: Labelled = []
    empty: dict[tuple[str, str], str] = {}
    for entry in entries:
        *folders, name = entry.name.split("/")
        at = next((i for i, word in enumerate(folders) if word in PARTS), None)
        part = folders[at] if at is not None else ""
        inside = folders[at + 1 :] if at is not None else folders[-1:]
        if not name:
            if part and inside:
                empty.setdefault((part, inside[0]), entry.name)
        elif is_image(name):
            wordnet = WORDNET.match(name)
            found.append((part, inside[0] if inside else wordnet.group() if wordnet else "", entry))
        else:
            note_left_out(left_out, name)
    for place in {(part, class_name) for part, class_name, _ in found}:
        empty.pop(place, None)
    for name in empty.values():
        raise ConfigError(
            f"each class needs at least one image; got none in {name!r} of {root!r}. "
            f"Add images ({' '.join(EXTENSIONS)}) or remove the folder from both parts."
        )
    return found


def _by_parts(root: str, listed: _Listed, val_part: float) -> PackSource:
    """The source, with its parts chosen or held out. Raises ConfigError."""
    parts: dict[str, list[tuple[SourceEntry, str]]] = {}
    for part, class_name, entry in listed.images:
        parts.setdefault(part, []).append((entry, class_name))
    if not parts:
        but = f"; {words}" if (words := left_out_in_words(listed.left_out)) else ""
        raise ConfigError(
            f"the source must hold images; got none in {root!r} ({' '.join(EXTENSIONS)}){but}. Check the path."
        )
    train, val = choose_parts(root, parts, val_part)
    others = {part: f"{part}/" if part else f"{len(parts['']):,} images in no part" for part in parts}
    # Nothing in the names speaks of parts: all of it trains. Beside val/ it may be test images as well.
    if train is None and list(parts) == [""]:
        train = ""
    if train is None:
        raise ConfigError(
            f"a data set needs training images; got only {', '.join(others.values())} in {root!r}. "
            "Add train/, or give a folder or file that name."
        )
    if val is None and not val_part:
        raise ConfigError(
            f"a data set needs validation images; got only one part in {root!r}. Write --val-part 10% to hold some out."
        )
    for entry, class_name in (*parts[train], *(parts[val] if val else ())):
        if not class_name:
            raise ConfigError(f"each image needs a class folder; got {entry.name!r} in {root!r}. Make train/<class>/….")
    # Sorted, as an image folder's: the same images get the same labels from either.
    names = listed.names or tuple(sorted({class_name for _, class_name in parts[train]}))
    items = _items(root, parts[train], names)
    if val is not None:
        if listed.kind == "tar":
            check_same_classes(train, names, val, {class_name for _, class_name in parts[val]})
        held = _items(root, parts[val], names)
    else:
        rows = hold_out([item.entry.name for item in items], np.array([item.label for item in items]), val_part)
        items, held = ([items[row] for row in chosen] for chosen in rows)
    unread = [word for part, word in others.items() if part not in (train, val)]
    words = left_out_in_words(listed.left_out)
    notes = (*part_notes(val, val_part, [*unread, *listed.unread]), *([words] if words else []))
    return PackSource(root, listed.kind, names, items, held, notes)


def _items(root: str, pairs: list[tuple[SourceEntry, str]], names: Sequence[str]) -> list[PackItem]:
    """In the order in which they are read."""
    label = {name: number for number, name in enumerate(names)}
    unknown = sorted({class_name for _, class_name in pairs} - set(label))
    if unknown:
        raise ConfigError(
            f"training and validation need the same classes; got {unknown[0]!r} only in validation in {root!r}. "
            "Add training images of it, or remove it."
        )
    items = [PackItem(entry, label[class_name]) for entry, class_name in pairs]
    return sorted(items, key=lambda item: (item.entry.file, item.entry.offset))
