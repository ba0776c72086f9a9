"""Packed data sets (``bigbatch pack``): records read by their place in a shard, crops decoded, bytes to the device."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.data.loading.loader import LoadedSource, WholeImages, WriteImage
from bigbatch.train_loop.data.packed.records import PackedFiles
from bigbatch.train_loop.data.pixels import boxes, crops
from bigbatch.train_loop.data.pixels.decode import cut_crop, decode_box, write_crop
from bigbatch.train_loop.data.sets.subset import subset_rows
from bigbatch.train_loop.errors import ImageError

T = TypeVar("T")
READ_EARLY_BYTES = 1 << 20
"""A larger file is not read when it is opened, but when its image is written: several are open at once."""
SHIFT = 1 / 8
"""Small images are shifted by at most this part of their side: 4 of CIFAR's 32 pixels (He et al. 2016, §4.2)."""


def open_packed(config: DataConfig, info: DataInfo, path: str) -> LoadedSource:
    """From ``path``, which may be a copy of ``info.path``."""
    files = PackedFiles(path)
    packed = files.info
    train = np.arange(packed.train_size, dtype=np.int64)
    if config.subset < 1:
        train = subset_rows(files.labels(train), config.subset)
    val = packed.train_size + np.arange(packed.val_size, dtype=np.int64)
    small = packed.largest_side <= SMALL_IMAGE_SIZE
    # Photographs as an image folder does, so that runs on either compare.
    mean, std = (packed.mean, packed.std) if small else (crops.MEAN, crops.STD)
    parts = [PackedImages(files, records, small, config) for records in (train, val)]
    return LoadedSource(config, info, parts[0], parts[1], mean, std)


class PackedImages(WholeImages):
    """Index i is record ``records[i]``."""

    def __init__(
        self, files: PackedFiles, records: sampling.Indices, small: bool, config: DataConfig = boxes.USUAL
    ) -> None:
        self._files, self._records, self._small, self._config = files, records, small, config

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """The classes, int64 ``[len(indices)]``."""
        return self._files.labels(self._records[indices])

    def read_ahead(self, indices: sampling.Indices) -> None:
        """Have the system fetch these images' bytes, without waiting for them."""
        self._files.read_ahead(self._records[indices])

    def open_plain(self, index: int) -> WriteImage:
        """A function that writes the central crop of an image into ``[size, size, 3]`` bytes. Raises ImageError."""
        return self._open(int(self._records[index]), self._plain)

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """A function that writes a random crop, or for a small image a random shift. Raises ImageError."""
        return self._open(int(self._records[index]), lambda record, data: self._random(record, data, draws))

    def whole_side(self, size: int) -> int:
        """As ``WholeImages.whole_side``: small images are kept as training sees them, photographs as stored."""
        return size if self._small else self._files.square_side(self._records)

    def open_whole(self, index: int) -> WriteImage:
        """As ``WholeImages.open_whole``."""
        return self._open(int(self._records[index]), self._whole)

    def _whole(self, record: int, data: bytes) -> WriteImage:
        return self._crop(record, data, (0, 0, *self._files.size(record)))

    def draw_window(self, side: int, draws: random.Random) -> boxes.Box:
        """As ``WholeImages.draw_window``: a random crop, or for small images a random shift."""
        if not self._small:
            return boxes.random_box(side, side, draws, self._config.augment)
        right, down = _draw_shift(side, draws)
        return -right, -down, side - right, side - down

    def content(self) -> bytes:
        """Of the records and the set's index, which has a checksum of each image."""
        return hashlib.sha256(self._records.tobytes() + self._files.index_bytes()).digest()

    def _open(self, record: int, begin: Callable[[int, bytes], WriteImage]) -> WriteImage:
        if self._files.bytes_of(record) <= READ_EARLY_BYTES:
            return begin(record, self._read(record))
        return lambda out: begin(record, self._read(record))(out)

    def _read(self, record: int) -> bytes:
        data = self._files.read(record)
        self._files.check_once(record, data)
        return data

    def _plain(self, record: int, data: bytes) -> WriteImage:
        width, height = self._files.size(record)
        if self._small:
            return self._whole(record, data)

        def write(out: torch.Tensor) -> None:
            size = out.shape[0]
            image = decode_box(data, boxes.central_box(width, height, size, self._config.val_crop), size)
            out.copy_(torch.from_numpy(np.array(image)))

        return lambda out: self._named(record, write, out)

    def _random(self, record: int, data: bytes, draws: random.Random) -> WriteImage:
        width, height = self._files.size(record)
        if self._small:
            whole = self._whole(record, data)
            return lambda out: _shift(whole, draws, out)
        return self._crop(record, data, boxes.random_box(width, height, draws, self._config.augment))

    def _crop(self, record: int, data: bytes, box: boxes.Box) -> WriteImage:
        """Crop the record; the bytes outside the box are released at once."""
        part, place = self._named(record, cut_crop, data, box)
        return lambda out: self._named(record, write_crop, part, place, out)

    def _named(self, record: int, step: Callable[..., T], *arguments: object) -> T:
        """``step(*arguments)``. An error in it becomes an ImageError that names the record."""
        try:
            return step(*arguments)
        except Exception as error:  # Pillow and torchvision raise many
            intact = self._files.is_intact(record, self._files.read(record))
            reason = error if intact else "its bytes have changed (CRC-32)"
            raise ImageError(f"cannot decode {self._files.where(record)}: {reason}. Pack it again.") from None


def _shift(write_whole: WriteImage, draws: random.Random, out: torch.Tensor) -> None:
    """Moved by up to an eighth, black where nothing comes in."""
    size = out.shape[0]
    whole = torch.empty_like(out)
    write_whole(whole)
    right, down = _draw_shift(size, draws)
    columns, from_columns = boxes.overlap(size, right)
    rows, from_rows = boxes.overlap(size, down)
    out.zero_()
    out[rows, columns] = whole[from_rows, from_columns]


def _draw_shift(size: int, draws: random.Random) -> tuple[int, int]:
    """Pixels to the right and down."""
    reach = round(size * SHIFT)
    return draws.randint(-reach, reach), draws.randint(-reach, reach)
