"""The records of a packed data set, read by number. No torch."""

from __future__ import annotations

import mmap
import os
import zlib

import numpy as np
import numpy.typing as npt

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.errors import ImageError

NUMBERS = ("shard", "offset", "bytes", "label", "height", "width", "crc32")
"""Columns of the index that are arrays of numbers."""


READ_AHEAD_BYTES = 1 << 17
"""At once, from the begin of a page on: of a longer request Linux reads no more than the file system's read-ahead, by
default this (mm/readahead.c, force_page_cache_ra), and the rest would be waited for."""
PAGE = mmap.PAGESIZE


class PackedFiles:
    """The records of a packed folder, by number: training images first. Each process has descriptors of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.info = schema.read_info(path)
        self._opened_by = 0

    def __getstate__(self) -> dict[str, object]:
        # A mapped column pickles as the whole file.
        return {"path": self.path, "info": self.info, "_opened_by": 0}

    def _open(self) -> None:
        """Descriptors must not be shared with a parent, which may close them."""
        if self._opened_by == os.getpid():
            return
        batch = schema.open_index(self.path)
        self._columns = {name: batch.column(name).to_numpy() for name in NUMBERS}
        self._keys = batch.column("key")
        self._descriptors: dict[int, int] = {}
        self._checked = np.zeros(len(self._keys), dtype=bool)
        self._opened_by = os.getpid()

    def columns(self) -> dict[str, npt.NDArray[np.integer]]:
        """``NUMBERS``, each ``[records]``, mapped."""
        self._open()
        return self._columns

    def index_bytes(self) -> bytes:
        """The index file, which names each image with its checksum."""
        with open(os.path.join(self.path, schema.INDEX), "rb") as file:
            return file.read()

    @property
    def records(self) -> int:
        """How many images there are, of training and validation together."""
        self._open()
        return len(self._columns["label"])

    def labels(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The classes of many records, int64 ``[len(records)]``."""
        self._open()
        return self._columns["label"][records].astype(np.int64)

    def label(self, record: int) -> int:
        """The class of one record."""
        self._open()
        return int(self._columns["label"][record])

    def size(self, record: int) -> tuple[int, int]:
        """Width and height of the stored image, pixels."""
        self._open()
        return int(self._columns["width"][record]), int(self._columns["height"][record])

    def square_side(self, records: npt.NDArray[np.int64] | slice) -> int:
        """Pixels a side of the stored images; 0 unless all of these are square and of one size."""
        found = [self.columns()[name][records] for name in ("width", "height")]
        sides = {int(end) for column in found for end in (column.min(), column.max())}
        return sides.pop() if len(sides) == 1 else 0

    def bytes_of(self, record: int) -> int:
        """Of the stored image file."""
        self._open()
        return int(self._columns["bytes"][record])

    def read(self, record: int) -> bytes:
        """The image's bytes. Raises ImageError if the shard has changed."""
        length = self.bytes_of(record)
        try:
            # Not mapped: a page fault at a time is 15 times slower than this when the file is cold.
            data = os.pread(self._descriptor(record), length, int(self._columns["offset"][record]))
        except OSError as error:
            raise ImageError(f"cannot read {self.where(record)}: {error.strerror}. Check the file system.") from None
        if len(data) != length:
            raise ImageError(f"cannot read {self.where(record)}: the shard is cut short. Copy or pack it again.")
        return data

    def _descriptor(self, record: int) -> int:
        number = int(self._columns["shard"][record])
        if number not in self._descriptors:
            shard = self.info.shards[number]
            descriptor = os.open(os.path.join(self.path, shard.file), os.O_RDONLY)
            found = os.fstat(descriptor).st_size
            if found != shard.bytes:  # since the run began: it was another size then
                os.close(descriptor)
                raise ImageError(
                    f"cannot read {self.where(record)}: the shard is cut short or replaced, {found} bytes in place of "
                    f"{shard.bytes}. Copy or pack it again."
                )
            self._descriptors[number] = descriptor
        return self._descriptors[number]

    def read_ahead(self, records: npt.NDArray[np.int64]) -> None:
        """Ask the system to fetch, all at once, the records that are not in its memory."""
        self._open()
        offsets, lengths = (self._columns[name][records].tolist() for name in ("offset", "bytes"))
        byte = [bytearray(1)]
        for record, offset, length in zip(records.tolist(), offsets, lengths, strict=True):
            try:
                descriptor = self._descriptor(record)
                try:  # takes a microsecond; a request for cached data would take twenty
                    # In its middle: its ends share pages with its neighbours.
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

        Of each record when a process first reads it, which costs a small part of decoding it.
        """
        if not self._checked[record]:
            if not self.is_intact(record, data):
                raise ImageError(
                    f"cannot decode {self.where(record)}: its bytes have changed (CRC-32). Copy or pack it again."
                )
            self._checked[record] = True

    def is_intact(self, record: int, data: bytes) -> bool:
        """Whether ``data``, the bytes of the record, has the CRC-32 that was noted when it was packed."""
        self._open()
        return zlib.crc32(data) == int(self._columns["crc32"][record])

    def where(self, record: int) -> str:
        """Record, shard and source name, for messages."""
        self._open()
        shard = self.info.shards[int(self._columns["shard"][record])]
        return f"record {record} ({self._keys[record].as_py()}) in {os.path.join(self.path, shard.file)}"

    def check_records(self, count: int = 32) -> None:
        """Check the index, all labels and ``count`` evenly spread records. Raises ConfigError with the fault."""
        schema.check_index(self.path)
        self._open()
        labels, classes = self._columns["label"], len(self.info.class_names)
        for record in np.flatnonzero((labels < 0) | (labels >= classes))[:1]:
            raise ConfigError(
                f"each label must be 0 to {classes - 1}, a class of the set; got {labels[record]} for "
                f"{self.where(int(record))}. Pack it again."
            )
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
