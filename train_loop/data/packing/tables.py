"""Images in tables: Hugging Face's Parquet files and the CIFAR-10 pickles."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing.entry import Labelled, SourceEntry, part_of_file

if TYPE_CHECKING:
    import pyarrow.parquet as pq


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
