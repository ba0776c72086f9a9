"""What there is to pack: every image of a source with its part, class and place, without unpacking anything.

A source is a folder tree, tars (also within tars), Hugging Face Parquet files or the CIFAR-10 pickles. Each is
listed as *entries*, a name such as ``train/ant/7.jpg`` and a place to read; names then decide part and class.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from train_loop.config import ConfigError
from train_loop.data.scan import EXTENSIONS, TRAIN_FOLDERS, VAL_FOLDERS

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
WORDNET = re.compile(r"n\d{8}(?=_)")
"""ImageNet's training images are named for their class: ``n01440764_10026.JPEG``."""


class Entry(NamedTuple):
    """An image where it lies."""

    name: str
    """Inside the source, such as ``train/ant/7.jpg``; it identifies the image."""
    file: str
    offset: int
    """Bytes into ``file``; a row number in Parquet and pickles; -1: the file is the image."""
    size: int
    """Bytes."""


class Item(NamedTuple):
    """An image to pack."""

    entry: Entry
    label: int


@dataclass(frozen=True)
class PackSource:
    """All images of a source."""

    path: str
    kind: str
    class_names: tuple[str, ...]
    train: list[Item]
    val: list[Item]

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
    """List ``path``. Raises ConfigError where there is no image, or no class can be told.

    Args:
        val_part: 0 to 1: hold out so much of each class where the source has no validation part.
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
    parts: dict[str, list[tuple[Entry, str]]] = {}
    for part, class_name, entry in labelled:
        parts.setdefault(part, []).append((entry, class_name))
    train, val = _choose_parts(root, parts, val_part)
    names = names or tuple(sorted({class_name for _, class_name in train}))
    ordered = [_items(root, pairs, names, by_class=kind == "folder") for pairs in (train, val)]
    return PackSource(root, kind, names, *ordered)


Labelled = list[tuple[str, str, Entry]]
"""Part, class, entry."""


def _labelled(root: str) -> tuple[str, Labelled, tuple[str, ...] | None]:
    """Kind, images, and the class names where the source states them (else they are sorted)."""
    files = [root] if os.path.isfile(root) else [e.path for e in _visible(root) if e.is_file()]
    parquet = sorted(file for file in files if file.endswith(".parquet"))
    if not parquet and os.path.isdir(os.path.join(root, "data")):
        parquet = sorted(e.path for e in _visible(os.path.join(root, "data")) if e.name.endswith(".parquet"))
    if parquet:
        return ("parquet", *_parquet(parquet))
    pickles = next((p for p in (root, os.path.join(root, "cifar-10-batches-py")) if _is_cifar(p)), None)
    if pickles:
        return ("cifar10-pickle", *_cifar(pickles))
    tars = sorted(file for file in files if file.endswith(ARCHIVES) and "devkit" not in os.path.basename(file))
    if tars:
        entries = [entry for file in tars for entry in _tar_entries(file, root)]
        if any(entry.name.endswith(".cls") for entry in entries):
            return "webdataset", _webdataset(entries), None
        return "tar", _by_name(root, entries), None
    if os.path.isfile(root):
        raise ConfigError(f"the source must be a folder, a tar or a Parquet file; got {root!r}. Unpack or convert it.")
    return "folder", _by_name(root, _tree(root, "")), None


# --- names → part and class ---


def _by_name(root: str, entries: Iterable[Entry]) -> Labelled:
    """``…/train/ant/7.jpg``; without such a part, the folder is the class, or ImageNet's own file names tell it."""
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
        elif wordnet:
            found.append((folders[at] if at is not None else "", wordnet.group(), entry))
        else:
            raise ConfigError(f"each image needs a class folder; got {entry.name!r} in {root}. Make train/<class>/….")
    return found


def _part_of_file(file: str) -> str:
    """``train``, ``val``, … where a file's name says so, as in ``imagenet-train-000017.tar``."""
    match = re.search(r"(?<![a-z])(train|validation|val|test)(?![a-z])", os.path.basename(file).lower())
    return match.group(1) if match else ""


def _choose_parts(
    root: str, parts: dict[str, list[tuple[Entry, str]]], val_part: float | None
) -> tuple[list[tuple[Entry, str]], list[tuple[Entry, str]]]:
    if not parts:
        raise ConfigError(
            f"the source must hold images; got none in {root!r} ({' '.join(EXTENSIONS)}). Check the path."
        )
    val = next((parts[name] for name in VAL_FOLDERS if name in parts), None)
    train = next((parts[name] for name in (*TRAIN_FOLDERS, "") if name in parts), None)
    if train is None:
        raise ConfigError(f"a data set needs training images; got only {', '.join(parts)} in {root!r}. Add train/.")
    if val is not None:
        return train, val
    if val_part is None:
        raise ConfigError(
            f"a data set needs validation images; got only one part in {root!r}. Write --val-part 0.1 to hold some out."
        )
    return _hold_out(train, val_part)


def _hold_out(pairs: list[tuple[Entry, str]], part: float) -> tuple[list[tuple[Entry, str]], list[tuple[Entry, str]]]:
    """Evenly spaced images of a list sorted by class and hash of the name: stratified, and always the same."""
    ranked = sorted(pairs, key=lambda pair: (pair[1], hashlib.sha256(os.fsencode(pair[0].name)).digest()))
    count = max(round(len(ranked) * part), 1)
    picked = {(i * len(ranked) + len(ranked) // 2) // count for i in range(count)}
    train = [pair for i, pair in enumerate(ranked) if i not in picked]
    return train, [pair for i, pair in enumerate(ranked) if i in picked]


def _items(root: str, pairs: list[tuple[Entry, str]], names: Sequence[str], by_class: bool) -> list[Item]:
    """In the order of an image folder's labels and paths; of containers, in the order in which they are read."""
    label = {name: number for number, name in enumerate(names)}
    unknown = sorted({class_name for _, class_name in pairs} - set(label))
    if unknown:
        raise ConfigError(
            f"training and validation need the same classes; got {unknown[0]!r} only in validation in {root!r}. "
            "Add training images of it, or remove it."
        )
    items = [Item(entry, label[class_name]) for entry, class_name in pairs]
    if by_class:
        return sorted(items, key=lambda item: (item.label, os.fsencode(item.entry.name)))
    return sorted(items, key=lambda item: (item.entry.file, item.entry.offset))


# --- folders and tars ---


def _visible(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _tree(folder: str, prefix: str) -> Iterator[Entry]:
    for entry in _visible(folder):
        if entry.is_file():
            yield Entry(prefix + entry.name, entry.path, -1, entry.stat().st_size)
        elif entry.is_dir(follow_symlinks=prefix.count("/") < 2):  # parts and classes may be links, as in subsets
            yield from _tree(entry.path, f"{prefix}{entry.name}/")


def _tar_entries(file: str, root: str) -> Iterator[Entry]:
    """Members of a tar and of tars in it. Raises ConfigError where it is compressed: nothing in it has a place."""
    if not file.endswith(".tar"):
        raise ConfigError(
            f"a tar must be uncompressed, for its images are read where they lie; got {file!r}. "
            f"Write: {'xz' if file.endswith('xz') else 'bzip2' if file.endswith('bz2') else 'gzip'} -dk {file}"
        )
    part = _part_of_file(file)
    wordnet_ids = _imagenet_val_classes(os.path.dirname(file)) if "ILSVRC2012_img_val" in file else None
    with open(file, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in _members(archive, stream, 0, ""):
            name = member[0]
            if wordnet_ids:
                number = int(name.split(".")[0].rsplit("_", 1)[1])
                name = f"{wordnet_ids[number - 1]}/{name}"
            inside = name.split("/")
            if part and not any(word in TRAIN_FOLDERS + VAL_FOLDERS for word in inside[:-1]):
                name = f"{part}/{name}"
            yield Entry(name, file, member[1], member[2])


def _members(archive: tarfile.TarFile, stream: Any, base: int, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset in the outermost file, size. A tar inside is read through the file that holds it."""
    for member in archive:
        name = prefix + os.path.normpath(member.name)
        if not member.isfile() or os.path.basename(name).startswith("."):
            continue
        if name.endswith(".tar"):
            within = _Window(stream, base + member.offset_data, member.size)
            with tarfile.open(fileobj=within, mode="r:") as inner:  # type: ignore[call-overload]
                yield from _members(inner, stream, base + member.offset_data, name.removesuffix(".tar") + "/")
        else:
            yield name, base + member.offset_data, member.size


class _Window:
    """A part of a file, as a file."""

    def __init__(self, stream: Any, start: int, size: int) -> None:
        self._descriptor, self._start, self._size, self._at = stream.fileno(), start, size, 0

    def read(self, count: int = -1) -> bytes:
        left = self._size - self._at
        data = os.pread(self._descriptor, left if count < 0 else min(count, left), self._start + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def _imagenet_val_classes(folder: str) -> list[str]:
    """ImageNet's validation images carry no class in their names: the development kit beside the tar has it."""
    from scipy.io import loadmat  # 70 ms, for this alone

    kit = os.path.join(folder, "ILSVRC2012_devkit_t12.tar.gz")
    if not os.path.exists(kit):
        raise ConfigError(f"ImageNet's validation tar needs its development kit; got no {kit!r}. Put it there.")
    with tarfile.open(kit) as archive:
        data = {
            os.path.basename(member.name): archive.extractfile(member)
            for member in archive
            if member.name.endswith(("meta.mat", "validation_ground_truth.txt"))
        }
        meta, truth = data["meta.mat"], data["ILSVRC2012_validation_ground_truth.txt"]
        assert meta is not None and truth is not None  # both are regular files
        synsets = loadmat(BytesIO(meta.read()), squeeze_me=True)["synsets"]
        wordnet = {int(synset[0]): str(synset[1]) for synset in synsets}
        return [wordnet[int(line)] for line in truth.read().split()]


def _webdataset(entries: Sequence[Entry]) -> Labelled:
    """``000017.jpg`` and ``000017.cls``, whose text is the label."""
    labels = {
        (entry.file, os.path.splitext(entry.name)[0]): read_entry(entry).decode().strip()
        for entry in entries
        if entry.name.endswith(".cls")
    }
    images = [entry for entry in entries if entry.name.lower().endswith(EXTENSIONS)]
    width = max((len(text) for text in labels.values()), default=1)
    found: Labelled = []
    for entry in images:
        text = labels.get((entry.file, os.path.splitext(entry.name)[0]))
        if text is None or not text.isdigit():
            raise ConfigError(f"each image needs a label in a .cls file; got {text!r} for {entry.name!r}. Add it.")
        named = entry._replace(name=f"{os.path.basename(entry.file)}/{entry.name}")
        found.append((_part_of_file(entry.file), text.zfill(width), named))
    return found


# --- tables ---


def _parquet(files: Sequence[str]) -> tuple[Labelled, tuple[str, ...] | None]:
    """Hugging Face's: a column ``image`` of ``struct<bytes, path>``, or ``img``, and one ``label``."""
    import pyarrow.parquet as pq

    found: Labelled = []
    names: tuple[str, ...] | None = None
    highest = 0
    for file in files:
        schema = pq.read_schema(file)
        if "label" not in schema.names or _image_column(schema.names) is None:
            raise ConfigError(f"a Parquet file needs columns image and label; got {schema.names} in {file!r}. Rename.")
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        stated = told.get("info", {}).get("features", {}).get("label", {}).get("names")
        names = tuple(stated) if stated else names
        labels = pq.read_table(file, columns=["label"])["label"].to_pylist()
        if any(not isinstance(label, int) or label < 0 for label in labels):
            raise ConfigError(f"labels must be whole numbers from 0; got another in {file!r}. Drop those rows.")
        size = os.path.getsize(file) // max(len(labels), 1)
        for row, label in enumerate(labels):
            entry = Entry(f"{os.path.basename(file)}/{row:08d}", file, row, size)
            found.append((_part_of_file(file), str(label), entry))
            highest = max(highest, label)
    names = names or tuple(str(number) for number in range(highest + 1))
    if highest >= len(names):
        raise ConfigError(f"labels must be below the {len(names)} classes of the file; got {highest}. Mend its names.")
    return [(part, names[int(number)], entry) for part, number, entry in found], names


def _image_column(names: Sequence[str]) -> str | None:
    return next((name for name in ("image", "img") if name in names), None)


def _is_cifar(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "data_batch_1")) and os.path.isfile(os.path.join(folder, "test_batch"))


def _cifar(folder: str) -> tuple[Labelled, tuple[str, ...]]:
    names = tuple(_text(name) for name in _unpickle(os.path.join(folder, "batches.meta"))["label_names"])
    found: Labelled = []
    for name in sorted(os.listdir(folder)):
        part = "train" if name.startswith("data_batch_") else "test" if name == "test_batch" else None
        if part:
            file = os.path.join(folder, name)
            for row, label in enumerate(_unpickle(file)["labels"]):
                found.append((part, names[label], Entry(f"{name}/{row:05d}", file, row, 3072)))
    return found, names


class _NumpyOnly(pickle.Unpickler):
    """The pickles come from the network: nothing but arrays may be made of them."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[0], name) in (("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"a CIFAR pickle holds arrays; got {module}.{name}")


@lru_cache(maxsize=1)
def _unpickle(file: str) -> dict[str, Any]:
    with open(file, "rb") as stream:
        content = _NumpyOnly(stream, encoding="bytes").load()
    return {_text(key): value for key, value in content.items()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# --- reading ---


def read_entry(entry: Entry) -> bytes:
    """The image file's bytes; a pickle's pixels as PNG."""
    if entry.offset < 0:
        return Path(entry.file).read_bytes()
    if entry.file.endswith(".parquet"):
        return _parquet_image(entry.file, entry.offset)
    if not entry.file.endswith(".tar"):
        pixels = np.asarray(_unpickle(entry.file)["data"][entry.offset], dtype=np.uint8)
        buffer = BytesIO()
        Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0)).save(buffer, "PNG")
        return buffer.getvalue()
    with open(entry.file, "rb") as stream:
        return os.pread(stream.fileno(), entry.size, entry.offset)


def _parquet_image(file: str, row: int) -> bytes:
    starts, reader = _parquet_groups(file)
    group = int(np.searchsorted(starts, row, side="right")) - 1
    value = _parquet_group(file, group)[row - int(starts[group])].as_py()
    data = value["bytes"] if isinstance(value, dict) else value
    return data or b""


@lru_cache(maxsize=2)
def _parquet_groups(file: str) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file)
    counts = [reader.metadata.row_group(i).num_rows for i in range(reader.num_row_groups)]
    return np.cumsum([0, *counts[:-1]]), reader


@lru_cache(maxsize=2)
def _parquet_group(file: str, group: int) -> Any:
    """A row group's images. Items are packed in order of class: keep few, for one may be 100 MB."""
    reader = _parquet_groups(file)[1]
    return reader.read_row_group(group, columns=[_image_column(reader.schema_arrow.names)]).column(0)
