"""List the images of a source, with part, class and place, without unpacking anything.

A source is a folder tree or tars (``tars.py``), Hugging Face Parquet files or the CIFAR-10 pickles
(``tables.py``). Each is listed as *entries*, a name such as ``train/ant/7.jpg`` and a place to read; names then
decide part and class.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing import tables, tars
from bigbatch.train_loop.data.packing.entry import Labelled, SourceEntry
from bigbatch.train_loop.data.sets.scan import EXTENSIONS, TRAIN_FOLDERS, VAL_FOLDERS

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

    def fingerprint(self) -> str:
        """Of names, labels and sizes, and of the containers' times: another one, another source."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for items in (self.train, self.val):
            for entry, label in items:
                digest.update(f"{entry.name}\0{label}\0{entry.size}\0".encode(errors="surrogateescape"))
        files = {item.entry.file for items in (self.train, self.val) for item in items if item.entry.offset >= 0}
        for file in sorted(files):
            digest.update(f"{os.path.basename(file)}\0{os.stat(file).st_mtime_ns}\0".encode())
        return digest.hexdigest()


def find_source(path: str, val_part: float | None = None) -> PackSource:
    """List ``path``. Raises ConfigError if there is no image, or the classes are unknown.

    Args:
        val_part: 0 to 1: the part of each class to hold out if the source has no validation images.
    """
    root = os.path.abspath(os.path.expanduser(path))
    if not os.path.exists(root):
        raise ConfigError(f"the source must exist; got {path!r}. Write a folder, a tar or a Parquet file.")
    try:
        kind, labelled, names = _labelled(root)
    except (OSError, tarfile.TarError, ValueError, EOFError, pickle.UnpicklingError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the source must be readable; got {path!r}: {error}. Check the file.") from None
    parts: dict[str, list[tuple[SourceEntry, str]]] = {}
    for part, class_name, entry in labelled:
        parts.setdefault(part, []).append((entry, class_name))
    train, val = _choose_parts(root, parts, val_part)
    for entry, class_name in (*train, *val):
        if not class_name:
            raise ConfigError(f"each image needs a class folder; got {entry.name!r} in {root}. Make train/<class>/….")
    names = names or tuple(sorted({class_name for _, class_name in train}))
    ordered = [_items(root, pairs, names, by_class=kind == "folder") for pairs in (train, val)]
    return PackSource(root, kind, names, *ordered)


def read_entry(entry: SourceEntry) -> bytes:
    """The image file's bytes; a pickle's pixels as PNG."""
    if entry.offset < 0 or entry.file.endswith(".tar"):
        return tars.read_bytes(entry)
    if entry.file.endswith(".parquet"):
        return tables.parquet_image(entry.file, entry.offset)
    return tables.cifar_image(entry.file, entry.offset)


def _labelled(root: str) -> tuple[str, Labelled, tuple[str, ...] | None]:
    """Kind, images, and the class names if the source gives them (else they are sorted)."""
    files = [root] if os.path.isfile(root) else [e.path for e in tars.visible_entries(root) if e.is_file()]
    parquet = sorted(file for file in files if file.endswith(".parquet"))
    if not parquet and os.path.isdir(os.path.join(root, "data")):
        parquet = sorted(
            e.path for e in tars.visible_entries(os.path.join(root, "data")) if e.name.endswith(".parquet")
        )
    if parquet:
        return ("parquet", *tables.parquet_entries(parquet))
    pickles = next((p for p in (root, os.path.join(root, "cifar-10-batches-py")) if tables.is_cifar(p)), None)
    if pickles:
        return ("cifar10-pickle", *tables.cifar_entries(pickles))
    tar_files = sorted(file for file in files if file.endswith(ARCHIVES) and "devkit" not in os.path.basename(file))
    if tar_files:
        entries = [entry for file in tar_files for entry in tars.tar_entries(file, root)]
        if any(entry.name.endswith(".cls") for entry in entries):
            return "webdataset", tars.webdataset_entries(entries), None
        return "tar", _by_name(entries), None
    if os.path.isfile(root):
        raise ConfigError(f"the source must be a folder, a tar or a Parquet file; got {root!r}. Unpack or convert it.")
    return "folder", _by_name(tars.folder_entries(root, "")), None


# --- names → part and class ---


def _by_name(entries: Iterable[SourceEntry]) -> Labelled:
    """``…/train/ant/7.jpg``; without such a part, the folder is the class, or ImageNet's own file names tell it.

    The class is empty where nothing tells it: that may be a test part, which is not packed.
    """
    found: Labelled = []
    for entry in entries:
        if not entry.name.lower().endswith(EXTENSIONS):
            continue
        *folders, name = entry.name.split("/")
        at = next((i for i, word in enumerate(folders) if word in TRAIN_FOLDERS + VAL_FOLDERS), None)
        inside = folders[at + 1 :] if at is not None else folders[-1:]
        wordnet = WORDNET.match(name)
        if inside:
            found.append((folders[at] if at is not None else "", inside[0], entry))
        else:
            found.append((folders[at] if at is not None else "", wordnet.group() if wordnet else "", entry))
    return found


def _choose_parts(
    root: str, parts: dict[str, list[tuple[SourceEntry, str]]], val_part: float | None
) -> tuple[list[tuple[SourceEntry, str]], list[tuple[SourceEntry, str]]]:
    if not parts:
        raise ConfigError(
            f"the source must hold images; got none in {root!r} ({' '.join(EXTENSIONS)}). Check the path."
        )
    val = next((parts[name] for name in VAL_FOLDERS if name in parts), None)
    train = next((parts[name] for name in (*TRAIN_FOLDERS, "") if name in parts), None)
    if train is None:
        raise ConfigError(f"a data set needs training images; got only {', '.join(parts)} in {root!r}. Add train/.")
    if val is not None and val_part is not None:
        held = next(name for name in VAL_FOLDERS if name in parts)
        raise ConfigError(
            f"--val-part holds images out where there are no validation images; got {val_part:g} for {root!r}, which "
            f"has {held}/. Leave --val-part out, or pack its training folder alone."
        )
    if val is not None:
        return train, val
    if val_part is None:
        raise ConfigError(
            f"a data set needs validation images; got only one part in {root!r}. Write --val-part 0.1 to hold some out."
        )
    return _hold_out(train, val_part)


def _hold_out(
    pairs: list[tuple[SourceEntry, str]], part: float
) -> tuple[list[tuple[SourceEntry, str]], list[tuple[SourceEntry, str]]]:
    """Evenly spaced images of a list sorted by class and hash of the name: stratified, and always the same."""
    ranked = sorted(pairs, key=lambda pair: (pair[1], hashlib.sha256(os.fsencode(pair[0].name)).digest()))
    count = max(round(len(ranked) * part), 1)
    picked = {(i * len(ranked) + len(ranked) // 2) // count for i in range(count)}
    train = [pair for i, pair in enumerate(ranked) if i not in picked]
    return train, [pair for i, pair in enumerate(ranked) if i in picked]


def _items(root: str, pairs: list[tuple[SourceEntry, str]], names: Sequence[str], by_class: bool) -> list[PackItem]:
    """In the order of an image folder's labels and paths; of containers, in the order in which they are read."""
    label = {name: number for number, name in enumerate(names)}
    unknown = sorted({class_name for _, class_name in pairs} - set(label))
    if unknown:
        raise ConfigError(
            f"training and validation need the same classes; got {unknown[0]!r} only in validation in {root!r}. "
            "Add training images of it, or remove it."
        )
    items = [PackItem(entry, label[class_name]) for entry, class_name in pairs]
    if by_class:
        return sorted(items, key=lambda item: (item.label, os.fsencode(item.entry.name)))
    return sorted(items, key=lambda item: (item.entry.file, item.entry.offset))
