"""Packed data sets (``bigbatch pack``): records read by their place in a shard, crops decoded, bytes to the device."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from train_loop.config import DataConfig
from train_loop.data import SMALL_IMAGE_SIZE, DataInfo, folder, sampling
from train_loop.data.decode import decode_box, decode_crop
from train_loop.data.loader import Images, LoadedSource
from train_loop.data.packed_files import PackedFiles
from train_loop.data.subset import subset_rows
from train_loop.errors import ImageError

SHIFT = 1 / 8
"""Of the side: how far small images are moved, 4 pixels of CIFAR's 32 (He et al. 2016, §4.2)."""


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
    mean, std = (packed.mean, packed.std) if small else (folder.MEAN, folder.STD)
    return LoadedSource(config, info, PackedImages(files, train, small), PackedImages(files, val, small), mean, std)


class PackedImages(Images):
    """Index i is record ``records[i]``."""

    def __init__(self, files: PackedFiles, records: sampling.Indices, small: bool) -> None:
        self._files, self._records, self._small = files, records, small

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        return self._files.labels(self._records[indices])

    def read_ahead(self, indices: sampling.Indices) -> None:
        self._files.read_ahead(self._records[indices])

    def write_plain(self, index: int, out: torch.Tensor) -> None:
        self._write(int(self._records[index]), lambda data, record: self._plain(data, record, out))

    def write_random(self, index: int, draws: random.Random, out: torch.Tensor) -> None:
        write = self._shift if self._small else self._random_crop
        self._write(int(self._records[index]), lambda data, record: write(data, record, draws, out))

    def _write(self, record: int, write: Callable[[bytes, int], None]) -> None:
        data = self._files.read(record)
        self._files.check_once(record, data)
        try:
            write(data, record)
        except Exception as error:  # Pillow and torchvision raise many
            reason = error if self._files.is_intact(record, data) else "its bytes have changed (CRC-32)"
            raise ImageError(f"cannot decode {self._files.where(record)}: {reason}. Pack it again.") from None

    def _plain(self, data: bytes, record: int, out: torch.Tensor) -> None:
        if self._small:
            decode_crop(data, (0, 0, *self._files.size(record)), out)
        else:
            size = out.shape[0]
            image = decode_box(data, folder.central_box(*self._files.size(record), size), size)
            out.copy_(torch.from_numpy(np.array(image)))

    def _random_crop(self, data: bytes, record: int, draws: random.Random, out: torch.Tensor) -> None:
        decode_crop(data, folder.random_box(*self._files.size(record), draws), out)

    def _shift(self, data: bytes, record: int, draws: random.Random, out: torch.Tensor) -> None:
        """Moved by up to an eighth, black where nothing comes in."""
        size = out.shape[0]
        reach = round(size * SHIFT)
        whole = torch.empty_like(out)
        decode_crop(data, (0, 0, *self._files.size(record)), whole)
        right, down = draws.randint(-reach, reach), draws.randint(-reach, reach)
        out.zero_()
        out[max(down, 0) : size + min(down, 0), max(right, 0) : size + min(right, 0)] = whole[
            max(-down, 0) : size - max(down, 0), max(-right, 0) : size - max(right, 0)
        ]
