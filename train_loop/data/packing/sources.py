"""List the images of a source, with part, class and place, without unpacking anything.

A source is an image folder, tars (also tars in tars and WebDataset's) or Hugging Face's Parquet files. From an image
folder it takes the images that training reads; elsewhere names such as ``train/ant/7.jpg`` tell part and class.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.sets.layout import (
    EXTENSIONS,
    PARTS,
    TEST,
    LeftOut,
    choose_parts,
    is_image,
    left_out_in_words,
    note_left_out,
    part_notes,
    visible_entries,
)
from bigbatch.train_loop.data.sets.scan import Listing, scan_folder
from bigbatch.train_loop.data.sets.subset import hold_out

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class SourceEntry(NamedTuple):
    """An image's place in a source."""

    name: str
    """Inside the source, such as ``train/ant/7.jpg``; it identifies the image."""
    file: str
    offset: int
    """Bytes into ``file``; a row number in Parquet; -1: the file is the image."""
    size: int
    """Bytes."""


class PackItem(NamedTuple):
    """An image to pack."""

    entry: SourceEntry
    label: int


Labelled = list[tuple[str, str, SourceEntry]]
"""Part, class, entry."""


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
        """A digest of names, labels and sizes, and of the containers' times. If it differs, the source differs."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for items in (self.train, self.val):
            for entry, label in items:
                # Sizes reveal an exchanged file. surrogateescape: a name may not be UTF-8.
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
    files = [root]
    if os.path.isdir(root):
        folders = [root, *(data for data in [os.path.join(root, "data")] if os.path.isdir(data))]  # as on the hub
        files = sorted(e.path for folder in folders for e in visible_entries(folder) if not e.is_dir())
    parquet, tars = ([file for file in files if file.endswith(end)] for end in (".parquet", ".tar"))
    left_out: LeftOut = Counter()
    try:
        if parquet:
            return _by_parts(root, "parquet", *_parquet_images(parquet), left_out, val_part)
        if tars:
            return _by_parts(root, "tar", _tar_images(tars, left_out), None, left_out, val_part)
    except OSError as error:
        raise ConfigError(f"the source must be readable; got {path!r}: {error}. Check the file.") from None
    if os.path.isfile(root):
        raise ConfigError(
            f"the source must be a folder, an uncompressed tar or a Parquet file; got {root!r}. Unpack or convert it."
        )
    scan = scan_folder(root, val_part)
    train, val = _items_of(root, scan.train), _items_of(root, scan.val)
    return PackSource(root, "folder", scan.class_names, train, val, scan.notes)


def read_entry(entry: SourceEntry) -> bytes:
    """The image file's bytes."""
    if entry.offset < 0:
        return Path(entry.file).read_bytes()
    if entry.file.endswith(".parquet"):
        return _parquet_image(entry.file, entry.offset)
    with open(entry.file, "rb") as stream:
        return os.pread(stream.fileno(), entry.size, entry.offset)


def _items_of(folder: str, listing: Listing) -> list[PackItem]:
    items = []
    for index, label in enumerate(listing.labels.tolist()):
        path = listing.path(index)
        items.append(PackItem(SourceEntry(os.path.relpath(path, folder), path, -1, os.stat(path).st_size), label))
    return items


def _by_parts(
    root: str,
    kind: str,
    images: Labelled,
    names: Sequence[str] | None,
    left_out: LeftOut,
    val_part: float,
) -> PackSource:
    """The source, with its parts chosen or held out. Raises ConfigError.

    Args:
        names: of the classes, where the source states them; else they are sorted.
    """
    parts: dict[str, list[tuple[SourceEntry, str]]] = {}
    for part, class_name, entry in images:
        parts.setdefault(part, []).append((entry, class_name))
    if not parts:
        raise ConfigError(
            f"the source must hold images; got none in {root!r} ({' '.join(EXTENSIONS)}). Check the path."
        )
    train, val = choose_parts(root, parts, val_part)
    # If no name has a part, all images train. Beside val/, images without a part may also be test images.
    if train is None and list(parts) == [""]:
        train = ""
    if train is None or (val is None and not val_part):
        raise ConfigError(
            f"a data set needs images to train and to validate; got only {', '.join(map(repr, parts))} in {root!r}. "
            "Add the other part, or write --val-part 10% to hold some training images out."
        )
    # Sorted, as an image folder's: the same images get the same labels from either.
    trained = {class_name for _, class_name in parts[train]}
    names = names or sorted(trained)
    items = _labelled(root, parts[train], names, trained)
    if val is not None:
        held = _labelled(root, parts[val], names, trained)
    else:
        rows = hold_out([item.entry.name for item in items], np.array([item.label for item in items]), val_part)
        items, held = ([items[row] for row in chosen] for chosen in rows)
    unread = [f"{part or 'images in no part'}/" for part in parts if part not in (train, val)]
    words = left_out_in_words(left_out)
    notes = (*part_notes(val, val_part, unread), *([words] if words else []))
    return PackSource(root, kind, tuple(names), items, held, notes)


def _labelled(root: str, pairs: list[tuple[SourceEntry, str]], names: Sequence[str], known: Set[str]) -> list[PackItem]:
    """In the order in which they are read."""
    label = {name: number for number, name in enumerate(names)}
    for entry, class_name in pairs:
        if class_name not in known or not class_name:
            raise ConfigError(
                f"each image needs a class that training has too; got {entry.name!r} of {class_name or 'none'!r} in "
                f"{root!r}. Make train/<class>/…, or add training images of it."
            )
    items = [PackItem(entry, label[class_name]) for entry, class_name in pairs]
    return sorted(items, key=lambda item: (item.entry.file, item.entry.offset))


def _part_of_file(file: str) -> str:
    """``train``, ``val``, … where a file's name says so, as in ``imagenet-train-000017.tar``."""
    match = re.search(r"(?<![a-z])(train|validation|valid|val|test)(?![a-z])", os.path.basename(file).lower())
    return match.group(1) if match else ""


# --- tars: listed without unpacking, read in place ---


def _tar_images(files: Sequence[str], left_out: LeftOut) -> Labelled:
    """Part and class from ``…/train/ant/7.jpg``. Without a part in the path, the tar's name tells it, and the folder is
    the class. In WebDataset's tars the class of ``000017.jpg`` is the text of ``000017.cls``."""
    found: Labelled = []
    stated = False
    for file in files:
        entries = list(_members_of(file))
        with open(file, "rb") as stream:  # once: opening may take as long as the file server's answer
            labels = {
                os.path.splitext(entry.name)[0]: os.pread(stream.fileno(), entry.size, entry.offset).strip()
                for entry in entries
                if entry.name.endswith(".cls")
            }
        stated = stated or bool(labels)
        for entry in entries:
            *folders, name = entry.name.split("/")
            at = next((i for i, word in enumerate(folders) if word in PARTS), None)
            part = folders[at] if at is not None else _part_of_file(file)
            if not is_image(name):
                if not name.endswith(".cls"):
                    note_left_out(left_out, name)
            elif labels:
                # Members of several tars may have the same names.
                named = entry._replace(name=f"{os.path.basename(file)}/{entry.name}")
                label = labels.get(os.path.splitext(entry.name)[0], b"").decode(errors="surrogateescape")
                found.append((part, label, named))
            else:
                named = entry if at is not None or not part else entry._replace(name=f"{part}/{entry.name}")
                inside = folders[at + 1 :] if at is not None else folders[-1:]
                found.append((part, inside[0] if inside else "", named))
    # Classes are sorted as words: without leading zeros 10 would come before 2.
    width = max((len(label) for _, label, _ in found if stated and label.isdigit()), default=0)
    return [(part, label.zfill(width) if label.isdigit() else label, entry) for part, label, entry in found]


def _members_of(file: str) -> Iterator[SourceEntry]:
    wordnet_ids = _imagenet_val_classes(os.path.dirname(file)) if "ILSVRC2012_img_val" in file else None
    try:
        with tarfile.open(file, mode="r:") as archive:
            for name, offset, size in _members(archive, 0, ""):
                if wordnet_ids and is_image(name):
                    name = f"{wordnet_ids[int(name.split('.')[0].rsplit('_', 1)[1]) - 1]}/{name}"
                yield SourceEntry(name, file, offset, size)
    except tarfile.TarError as error:
        raise ConfigError(f"a tar must be whole and not compressed; got {file!r}: {error}. Copy it again.") from None


def _members(archive: tarfile.TarFile, base: int, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset in the outermost file, size. Only the headers of an inner tar are read, in place."""
    for member in archive:
        name = prefix + os.path.normpath(member.name)
        # Links have no bytes of their own; hidden files are read nowhere.
        if not member.isfile() or any(word.startswith(".") and word != ".." for word in name.split("/")):
            continue
        if name.endswith(".tar"):
            with tarfile.open(fileobj=archive.extractfile(member), mode="r:") as inner:
                yield from _members(inner, base + member.offset_data, name.removesuffix(".tar") + "/")
        else:
            yield name, base + member.offset_data, member.size
    archive.fileobj.seek(archive.offset)
    end = archive.fileobj.read(tarfile.BLOCKSIZE)
    if end != bytes(tarfile.BLOCKSIZE):  # tarfile does not notice a tar that is cut off at a header
        raise tarfile.ReadError("unexpected end of data")


def _imagenet_val_classes(folder: str) -> list[str]:
    """The classes of ImageNet's validation images, from the development kit beside the tar: their names tell none."""
    from scipy.io import loadmat  # 70 ms, for this alone

    kit = os.path.join(folder, "ILSVRC2012_devkit_t12.tar.gz")
    if not os.path.exists(kit):
        raise ConfigError(f"ImageNet's validation tar needs its development kit; got no {kit!r}. Put it there.")
    with tarfile.open(kit) as archive:
        inside = "ILSVRC2012_devkit_t12/data/"
        meta, truth = (
            archive.extractfile(inside + name) for name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt")
        )
        assert meta is not None  # both are regular files
        assert truth is not None
        synsets = loadmat(BytesIO(meta.read()), squeeze_me=True)["synsets"]
        wordnet = {int(synset[0]): str(synset[1]) for synset in synsets}
        return [wordnet[int(line)] for line in truth.read().split()]


# --- Hugging Face's Parquet files ---


def _parquet_images(files: Sequence[str]) -> tuple[Labelled, tuple[str, ...]]:
    """A column ``image`` (or ``img``) of ``struct<bytes, path>``, and one ``label``; and the names of the classes."""
    import pyarrow.parquet as pq

    # A test part beside a validation part is of no use; ImageNet's has no labels.
    if {_part_of_file(file) for file in files} & {"val", "validation", "valid"}:
        files = [file for file in files if _part_of_file(file) != TEST]
    found: Labelled = []
    names: tuple[str, ...] = ()
    for file in files:
        try:
            schema = pq.read_schema(file)
            about = json_values.json_object((schema.metadata or {}).get(b"huggingface", b"{}"))
        except (pa.ArrowException, ValueError) as error:
            why = f"got {file!r}: {error}"
            raise ConfigError(f"a Parquet file must be whole, its metadata JSON; {why}. Copy it again.") from None
        column = _image_column(schema.names)
        inside = [] if column is None else [field.name for field in schema.field(column).flatten()]
        if "label" not in schema.names or f"{column}.bytes" not in inside:
            raise ConfigError(
                f"a Parquet file needs columns image (struct<bytes, path>) and label; got {schema.names} in {file!r}. "
                "Rename or convert them."
            )
        features = json_values.mapping(json_values.mapping(about, "info"), "features")
        own = tuple(json_values.texts(json_values.mapping(features, "label"), "names")) or names
        if names and own != names:
            raise ConfigError(f"Parquet files must number the same classes alike; got others in {file!r}. Convert it.")
        names = own
        labels = pq.read_table(file, columns=["label"])["label"].to_pylist()
        # Parquet does not tell the size of a row; the mean suffices to divide shards.
        size = os.path.getsize(file) // max(len(labels), 1)
        for row, label in enumerate(labels):
            entry = SourceEntry(f"{os.path.basename(file)}/{row:08d}", file, row, size)
            found.append((_part_of_file(file), str(label), entry))
    whole = {label: entry.file for _, label, entry in found}
    for label, file in whole.items():
        if not (label.isdigit() and int(label) < (len(names) or 1 << 31)):
            raise ConfigError(f"labels must be whole numbers from 0, each named; got {label} in {file!r}. Convert it.")
    names = names or tuple(str(number) for number in range(max(map(int, whole), default=0) + 1))
    return [(part, names[int(label)], entry) for part, label, entry in found], names


def _image_column(names: Sequence[str]) -> str | None:
    return next((name for name in ("image", "img") if name in names), None)


def _parquet_image(file: str, row: int) -> bytes:
    """The encoded image in a row of a Parquet file; empty if there is none."""
    starts, reader = _parquet_groups(file)
    group = int(np.searchsorted(starts, row, side="right")) - 1
    value = _parquet_group(file, group)[row - int(starts[group])].as_py()
    return value["bytes"] or b"" if value else b""


@lru_cache(maxsize=2)
def _parquet_groups(file: str) -> tuple[npt.NDArray[np.int64], pq.ParquetFile]:
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file)
    counts = [reader.metadata.row_group(i).num_rows for i in range(reader.num_row_groups)]
    return np.cumsum([0, *counts[:-1]]), reader


@lru_cache(maxsize=2)
def _parquet_group(file: str, group: int) -> pa.ChunkedArray:
    """A row group's images. Items are packed in the order of the file: so keep few groups, as one may be 100 MB."""
    reader = _parquet_groups(file)[1]
    return reader.read_row_group(group, columns=[_image_column(reader.schema_arrow.names)]).column(0)
