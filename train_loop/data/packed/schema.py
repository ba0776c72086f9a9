"""The format of a packed data set's files, Arrow IPC, and their records, read by number. No torch.

    index.arrow              a row an image, training first; written last: without it the folder is no data set
    train-00000.arrow, …     shards: the images and, beside them, what the index says of them
    val-00000.arrow, …
    rejected.parquet         images that could not be stored, with the reason

The index's schema metadata has the key ``bigbatch``: a JSON object, see ``PackedInfo``.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import ImageError

FORMAT = 1
INDEX = "index.arrow"
REJECTED = "rejected.parquet"
METADATA_KEY = b"bigbatch"
CRC_KEY = b"bigbatch-crc32"
PARTS = ("train", "val")

IMAGE_FIELDS = [
    pa.field("key", pa.string()),  # the image's name in the source
    pa.field("label", pa.int32()),
    pa.field("height", pa.int32()),  # pixels, as stored
    pa.field("width", pa.int32()),
    pa.field("crc32", pa.uint32()),  # of the image's bytes
]
SHARD_SCHEMA = pa.schema([pa.field("image", pa.large_binary()), *IMAGE_FIELDS])
INDEX_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),  # number in PackedInfo.shards
        pa.field("offset", pa.int64()),  # of the image's bytes in the shard's file
        pa.field("bytes", pa.int32()),
        *IMAGE_FIELDS,
    ]
)


SETTLED_NS = 2_000_000_000
"""A file older than this gets another time when it is written again, on any file system."""
_opened: dict[str, tuple[tuple[int, int, int, int], pa.RecordBatch]] = {}
"""Indexes that this process has read, by path: which version of the file, and what it held."""


@dataclass(frozen=True)
class ShardInfo:
    """A shard's file."""

    file: str
    part: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PackedInfo:
    """The index's facts about the whole data set."""

    format: int
    source: str
    """The packed folder's or file's name."""
    kind: str
    fingerprint: str
    """Fingerprint of the source: names, labels, sizes."""
    profile: dict[str, Any]
    class_names: tuple[str, ...]
    train_size: int
    val_size: int
    rejected: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Mean and standard deviation of the training images' red, green and blue, 0 to 1."""
    largest_side: int
    """Pixels, of all stored images."""
    shards: tuple[ShardInfo, ...]

    def to_json(self) -> bytes:
        """The JSON in the metadata of the index."""
        return json.dumps(asdict(self)).encode()

    def content_digest(self) -> str:
        """A digest of all shards' checksums."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()[:16]

    @staticmethod
    def from_json(text: bytes) -> PackedInfo:
        """Inverse of ``to_json``. Raises KeyError, TypeError or ValueError for anything else."""
        values = json.loads(text)
        shards = tuple(ShardInfo(**shard) for shard in values.pop("shards"))
        names, mean, std = (tuple(values.pop(key)) for key in ("class_names", "mean", "std"))
        return PackedInfo(class_names=names, mean=mean, std=std, shards=shards, **values)


def open_index(folder: str) -> pa.RecordBatch:
    """The index's columns, mapped, and its metadata. A process reads it once, unless the file has been replaced.

    Raises what pyarrow raises, and OSError.
    """
    path = os.path.join(folder, INDEX)
    about = os.stat(path)
    version = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
    known = _opened.get(path)
    if known is not None and known[0] == version:
        return known[1]
    with pa.memory_map(path) as file:
        columns = pa.ipc.open_file(file).get_batch(0)
    if time.time_ns() - about.st_mtime_ns > SETTLED_NS:  # a younger file may change again within one tick of its clock
        _opened[path] = version, columns
    return columns


def index_metadata(info: PackedInfo, columns: pa.RecordBatch) -> dict[bytes, bytes]:
    """Metadata of the index's schema: ``info``, and a checksum of ``info``, labels and places."""
    text = info.to_json()
    return {METADATA_KEY: text, CRC_KEY: str(_index_crc32(text, columns)).encode()}


def check_index(folder: str) -> None:
    """Raise ConfigError if the index has changed since it was written: its labels have no other checksum."""
    path = os.path.join(folder, INDEX)
    try:
        columns = open_index(folder)
        metadata = columns.schema.metadata
        crc = _index_crc32(metadata[METADATA_KEY], columns)
        intact = columns.schema.names == INDEX_SCHEMA.names and int(metadata[CRC_KEY]) == crc
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise ConfigError(f"an index must be as it was packed; got other bytes (CRC-32) in {path}. Copy it again.")


def _index_crc32(text: bytes, columns: pa.RecordBatch) -> int:
    """Checksum of the metadata and of the columns' values, without the padding between them."""
    crc = zlib.crc32(text)
    for name in columns.schema.names:
        column = columns.column(name)
        if name == "key":
            _, offsets, letters = column.buffers()
            places = np.frombuffer(offsets, np.int32)[: len(column) + 1]
            crc = zlib.crc32(memoryview(letters)[places[0] : places[-1]], zlib.crc32(places.data, crc))
        else:
            crc = zlib.crc32(column.to_numpy(), crc)
    return crc


def read_info(folder: str) -> PackedInfo:
    """The index's facts. Raises ConfigError if it is unreadable or of another version, or a shard has changed."""
    path = os.path.join(folder, INDEX)
    try:
        info = PackedInfo.from_json(open_index(folder).schema.metadata[METADATA_KEY])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"a packed data set needs its index; got {path}: {error}. Pack it again.") from None
    if info.format != FORMAT:
        raise ConfigError(
            f"this version reads packed format {FORMAT}; got {info.format!r} in {path}. Use the bigbatch that wrote it."
        )
    for part, count in (("train", info.train_size), ("val", info.val_size)):
        if count < 1:
            raise ConfigError(
                f"a data set needs images to train and to validate; got none in {part} of {folder}. Pack it again."
            )
    for shard in info.shards:
        file_path = os.path.join(folder, shard.file)
        size = os.path.getsize(file_path) if os.path.exists(file_path) else None
        if size != shard.bytes:
            found = "no such file" if size is None else f"{size} bytes"
            raise ConfigError(
                f"a shard must be as it was packed, {shard.bytes} bytes; got {found} for {file_path}. "
                "Copy or pack it again."
            )
    return info


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NUMBERS = ("shard", "offset", "bytes", "label", "height", "width", "crc32")
"""Columns of the index that are arrays of numbers."""


READ_AHEAD_BYTES = 1 << 17
"""Bytes of one request, from the begin of a page. Of a longer one Linux reads only the file system's read-ahead, by
default this (mm/readahead.c, force_page_cache_ra), and readers would wait for the rest."""
PAGE = mmap.PAGESIZE


class PackedFiles:
    """The records of a packed folder, by number: training images first. Loader processes are forks."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.info = read_info(path)
        batch = open_index(path)
        self.columns: dict[str, npt.NDArray[np.integer]] = {name: batch.column(name).to_numpy() for name in NUMBERS}
        """``NUMBERS``, each ``[records]``, mapped."""
        self._keys = batch.column("key")
        self._descriptors: dict[int, int] = {}
        self._checked = np.zeros(len(self._keys), dtype=bool)

    def index_bytes(self) -> bytes:
        """The index file, which names each image with its checksum."""
        with open(os.path.join(self.path, INDEX), "rb") as file:
            return file.read()

    def labels(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The classes of many records, int64 ``[len(records)]``."""
        return self.columns["label"][records].astype(np.int64)

    def size(self, record: int) -> tuple[int, int]:
        """Width and height of the stored image, pixels."""
        return int(self.columns["width"][record]), int(self.columns["height"][record])

    def square_side(self, records: npt.NDArray[np.int64] | slice) -> int:
        """Pixels a side of the stored images; 0 unless all of these are square and of one size."""
        found = [self.columns[name][records] for name in ("width", "height")]
        sides = {int(end) for column in found for end in (column.min(), column.max())}
        return sides.pop() if len(sides) == 1 else 0

    def read(self, record: int) -> bytes:
        """The image's bytes. Raises ImageError if the shard has changed."""
        length = int(self.columns["bytes"][record])
        try:
            # Not mapped: on a cold file single page faults are 15 times slower than this.
            data = os.pread(self._descriptor(record), length, int(self.columns["offset"][record]))
        except OSError as error:
            raise ImageError(f"cannot read {self.where(record)}: {error.strerror}. Check the file system.") from None
        if len(data) != length:
            raise ImageError(f"cannot read {self.where(record)}: the shard is cut short. Copy or pack it again.")
        return data

    def _descriptor(self, record: int) -> int:
        number = int(self.columns["shard"][record])
        if number not in self._descriptors:
            shard = self.info.shards[number]
            descriptor = os.open(os.path.join(self.path, shard.file), os.O_RDONLY)
            self._descriptors[number] = descriptor
        return self._descriptors[number]

    def read_ahead(self, records: npt.NDArray[np.int64]) -> None:
        """Ask the system to fetch, all at once, the records that are not in its memory."""
        offsets, lengths = (self.columns[name][records].tolist() for name in ("offset", "bytes"))
        byte = [bytearray(1)]
        for record, offset, length in zip(records.tolist(), offsets, lengths, strict=True):
            try:
                descriptor = self._descriptor(record)
                try:  # takes a microsecond; a request for cached data would take twenty
                    # In the middle of the record: its ends share pages with its neighbours.
                    os.preadv(descriptor, byte, offset + length // 2, os.RWF_NOWAIT)
                except OSError:
                    for start in range(offset - offset % PAGE, offset + length, READ_AHEAD_BYTES):
                        size = min(READ_AHEAD_BYTES, offset + length - start)
                        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
            except (OSError, ImageError):  # the read will report the error
                continue
            except AttributeError:  # a system without it
                return

    def check_once(self, record: int, data: bytes) -> None:
        """Raise ImageError if ``data`` is not what was packed. Decoders overlook many damages and give other pixels.

        A process checks each record when it first reads it, which costs a small part of decoding it.
        """
        if not self._checked[record]:
            if not self.is_intact(record, data):
                raise ImageError(
                    f"cannot decode {self.where(record)}: its bytes have changed (CRC-32). Copy or pack it again."
                )
            self._checked[record] = True

    def is_intact(self, record: int, data: bytes) -> bool:
        """Whether ``data``, the bytes of the record, has the CRC-32 that was noted when it was packed."""
        return zlib.crc32(data) == int(self.columns["crc32"][record])

    def where(self, record: int) -> str:
        """Record, shard and source name, for messages."""
        shard = self.info.shards[int(self.columns["shard"][record])]
        return f"record {record} ({self._keys[record].as_py()}) in {os.path.join(self.path, shard.file)}"

    def check_records(self, count: int = 32) -> None:
        """Check ``count`` evenly spread records. Raises ConfigError with the fault."""
        records = self.info.train_size + self.info.val_size
        for record in np.unique(np.linspace(0, records - 1, count).astype(int)):
            try:
                intact = self.is_intact(int(record), self.read(int(record)))
            except ImageError as error:
                raise ConfigError(str(error)) from None
            if not intact:
                raise ConfigError(
                    f"each record must be as it was packed; got other bytes: {self.where(int(record))}. "
                    "Copy or pack it again."
                )
