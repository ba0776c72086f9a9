"""Images in containers: listed without unpacking, read in place.

Containers are tars, also tars in tars and WebDataset's, and tables: Hugging Face's Parquet files and the CIFAR-10
pickles.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.sets.layout import PARTS, LeftOut, is_image, note_left_out

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class SourceEntry(NamedTuple):
    """An image's place in a source."""

    name: str
    """Inside the source, such as ``train/ant/7.jpg``; it identifies the image."""
    file: str
    offset: int
    """Bytes into ``file``; a row number in Parquet and pickles; -1: the file is the image."""
    size: int
    """Bytes."""


Labelled = list[tuple[str, str, SourceEntry]]
"""Part, class, entry."""


def part_of_file(file: str) -> str:
    """``train``, ``val``, … where a file's name says so, as in ``imagenet-train-000017.tar``."""
    match = re.search(r"(?<![a-z])(train|validation|valid|val|test)(?![a-z])", os.path.basename(file).lower())
    return match.group(1) if match else ""


def tar_entries(file: str, left_out: LeftOut) -> Iterator[SourceEntry]:
    """Members of a tar and of tars in it; the name of a folder ends with a slash.

    Args:
        left_out: is told of links, which have no bytes of their own.

    Raises ConfigError if it is compressed: its members have no fixed place.
    """
    if not file.endswith(".tar"):
        raise ConfigError(
            f"a tar must be uncompressed, because images are read directly from it; got {file!r}. "
            f"Write: {'xz' if file.endswith('xz') else 'bzip2' if file.endswith('bz2') else 'gzip'} -dk {file}"
        )
    part = part_of_file(file)
    wordnet_ids = _imagenet_val_classes(os.path.dirname(file)) if "ILSVRC2012_img_val" in file else None
    try:
        with tarfile.open(file, mode="r:") as archive:
            for member in _members(archive, 0, "", left_out):
                name = member[0]
                if wordnet_ids and is_image(name):
                    number = int(name.split(".")[0].rsplit("_", 1)[1])
                    name = f"{wordnet_ids[number - 1]}/{name}"
                inside = name.split("/")
                if part and not any(word in PARTS for word in inside[:-1]):
                    name = f"{part}/{name}"
                yield SourceEntry(name, file, member[1], member[2])
    except tarfile.TarError as error:
        raise ConfigError(
            f"a tar must be whole; got {file!r}: {error}. Copy it again, or write it again with its end."
        ) from None


def _members(archive: tarfile.TarFile, base: int, prefix: str, left_out: LeftOut) -> Iterator[tuple[str, int, int]]:
    """Name, offset in the outermost file, size. Of a tar inside only the headers are read, where they are."""
    for member in archive:
        name = prefix + os.path.normpath(member.name)
        if any(word.startswith(".") and word != ".." for word in name.split("/")):  # hidden, or the top folder itself
            continue
        if member.isdir():
            yield name + "/", base + member.offset_data, 0
        elif not member.isfile():
            left_out["link" if member.issym() or member.islnk() else "no file"] += 1
        elif name.endswith(".tar"):
            with tarfile.open(fileobj=archive.extractfile(member), mode="r:") as inner:
                yield from _members(inner, base + member.offset_data, name.removesuffix(".tar") + "/", left_out)
        else:
            yield name, base + member.offset_data, member.size
    archive.fileobj.seek(archive.offset)
    end = archive.fileobj.read(tarfile.BLOCKSIZE)
    if end != bytes(tarfile.BLOCKSIZE):  # tarfile takes one that is cut at a header for whole
        raise tarfile.ReadError("unexpected end of data")


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
        assert meta is not None  # both are regular files
        assert truth is not None
        synsets = loadmat(BytesIO(meta.read()), squeeze_me=True)["synsets"]
        wordnet = {int(synset[0]): str(synset[1]) for synset in synsets}
        return [wordnet[int(line)] for line in truth.read().split()]


def webdataset_entries(entries: Sequence[SourceEntry], left_out: LeftOut) -> Labelled:
    """``000017.jpg`` and ``000017.cls``, whose text is the label. ``left_out`` is told of all other files."""
    labels: dict[tuple[str, str], str] = {}
    classes = (entry for entry in entries if entry.name.endswith(".cls"))
    for file, group in itertools.groupby(classes, key=lambda entry: entry.file):
        with open(file, "rb") as stream:  # once: opening may take as long as the file server's answer
            for entry in group:
                label = os.pread(stream.fileno(), entry.size, entry.offset)
                labels[file, os.path.splitext(entry.name)[0]] = label.decode().strip()
    images = [entry for entry in entries if is_image(entry.name)]
    for entry in entries:
        if not (is_image(entry.name) or entry.name.endswith((".cls", "/"))):
            note_left_out(left_out, entry.name)
    width = max((len(text) for text in labels.values()), default=1)
    found: Labelled = []
    for entry in images:
        text = labels.get((entry.file, os.path.splitext(entry.name)[0]))
        if text is None or not text.isdigit():
            raise ConfigError(f"each image needs a label in a .cls file; got {text!r} for {entry.name!r}. Add it.")
        # Members of several tars may have the same names.
        named = entry._replace(name=f"{os.path.basename(entry.file)}/{entry.name}")
        # Classes are sorted as words: without leading zeros 10 would come before 2.
        found.append((part_of_file(entry.file), text.zfill(width), named))
    return found


def read_bytes(entry: SourceEntry) -> bytes:
    """The bytes of a file, or of a member of a tar."""
    if entry.offset < 0:
        return Path(entry.file).read_bytes()
    with open(entry.file, "rb") as stream:
        return os.pread(stream.fileno(), entry.size, entry.offset)


def parquet_entries(files: Sequence[str]) -> tuple[Labelled, tuple[str, ...] | None]:
    """Hugging Face's: a column ``image`` of ``struct<bytes, path>``, or ``img``, and one ``label``."""
    import pyarrow.parquet as pq

    found: Labelled = []
    names: tuple[str, ...] | None = None
    highest = 0
    for file in files:
        try:
            schema = pq.read_schema(file)
        except pa.ArrowException as error:
            raise ConfigError(f"a Parquet file must be whole; got {file!r}: {error}. Copy it again.") from None
        if "label" not in schema.names or _image_column(schema.names) is None:
            raise ConfigError(f"a Parquet file needs columns image and label; got {schema.names} in {file!r}. Rename.")
        kind = schema.field(_image_column(schema.names)).type
        if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 or _is_bytes(kind)):
            raise ConfigError(f"images must be struct<bytes, path> or binary; got {kind} in {file!r}. Store the files.")
        huggingface = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        stated = huggingface.get("info", {}).get("features", {}).get("label", {}).get("names")
        names = tuple(stated) if stated else names
        labels = pq.read_table(file, columns=["label"])["label"].to_pylist()
        if any(not isinstance(label, int) or label < 0 for label in labels):
            raise ConfigError(f"labels must be whole numbers from 0; got another in {file!r}. Drop those rows.")
        # Parquet does not tell the size of a row; the mean suffices to divide shards.
        size = os.path.getsize(file) // max(len(labels), 1)
        for row, label in enumerate(labels):
            entry = SourceEntry(f"{os.path.basename(file)}/{row:08d}", file, row, size)
            found.append((part_of_file(file), str(label), entry))
            highest = max(highest, label)
    names = names or tuple(str(number) for number in range(highest + 1))
    if highest >= len(names):
        raise ConfigError(f"labels must be below the {len(names)} classes of the file; got {highest}. Mend its names.")
    return [(part, names[int(number)], entry) for part, number, entry in found], names


def wanted_files(files: Sequence[str]) -> Sequence[str]:
    """Those that are read: not a test part beside a validation part, which is of no use; ImageNet's has no labels."""
    if {part_of_file(file) for file in files} & {"val", "validation", "valid"}:
        return [file for file in files if part_of_file(file) != "test"]
    return files


def _image_column(names: Sequence[str]) -> str | None:
    return next((name for name in ("image", "img") if name in names), None)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_cifar(folder: str) -> bool:
    """Whether the folder holds CIFAR-10 as its authors publish it for Python."""
    return os.path.isfile(os.path.join(folder, "data_batch_1")) and os.path.isfile(os.path.join(folder, "test_batch"))


def cifar_entries(folder: str) -> tuple[Labelled, tuple[str, ...]]:
    """CIFAR-10's images, by part, class and place in its pickles; and the names of its classes."""
    names = _unpickle(os.path.join(folder, "batches.meta")).label_names
    found: Labelled = []
    for name in sorted(os.listdir(folder)):
        part = "train" if name.startswith("data_batch_") else "test" if name == "test_batch" else None
        if part:
            file = os.path.join(folder, name)
            for row, label in enumerate(_unpickle(file).labels):
                found.append((part, names[label], SourceEntry(f"{name}/{row:05d}", file, row, 3072)))
    return found, names


@dataclass(frozen=True)
class CifarBatch:
    """The content of a CIFAR pickle; empty if the file is another pickle."""

    label_names: tuple[str, ...]
    labels: Sequence[int]
    data: npt.NDArray[np.uint8]
    """``[images, 3072]``."""


class _NumpyOnly(pickle.Unpickler):
    """The pickles come from the network: nothing but arrays may be made of them."""

    def find_class(self, module: str, name: str) -> object:
        # What pickles of arrays need: anything else in a pickle can run code.
        if (module.split(".")[0], name) in (("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            # NumPy 2 has renamed the module that old pickles name.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"a CIFAR pickle holds arrays; got {module}.{name}")


# Images are asked for one by one, and each file is read as a whole.
@lru_cache(maxsize=1)
def _unpickle(file: str) -> CifarBatch:
    with open(file, "rb") as stream:
        # The authors wrote them with Python 2, whose strings are bytes here.
        content = _NumpyOnly(stream, encoding="bytes").load()
    named = {_text(key): value for key, value in content.items()}
    return CifarBatch(
        label_names=tuple(_text(name) for name in named.get("label_names", ())),
        labels=named.get("labels", ()),
        data=named.get("data", np.empty((0, 3072), np.uint8)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def parquet_image(file: str, row: int) -> bytes:
    """The encoded image in a row of a Parquet file, as Hugging Face stores it; empty if there is none."""
    starts, reader = _parquet_groups(file)
    group = int(np.searchsorted(starts, row, side="right")) - 1
    value = _parquet_group(file, group)[row - int(starts[group])].as_py()
    data = value["bytes"] if isinstance(value, dict) else value
    return data or b""


@lru_cache(maxsize=2)
def _parquet_groups(file: str) -> tuple[npt.NDArray[np.int64], pq.ParquetFile]:
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(file)
    counts = [reader.metadata.row_group(i).num_rows for i in range(reader.num_row_groups)]
    return np.cumsum([0, *counts[:-1]]), reader


@lru_cache(maxsize=2)
def _parquet_group(file: str, group: int) -> pa.ChunkedArray:
    """A row group's images. Items are packed in order of class: keep few, for one may be 100 MB."""
    reader = _parquet_groups(file)[1]
    return reader.read_row_group(group, columns=[_image_column(reader.schema_arrow.names)]).column(0)


def cifar_image(file: str, row: int) -> bytes:
    """As PNG, which loses nothing."""
    pixels = np.asarray(_unpickle(file).data[row], dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()
