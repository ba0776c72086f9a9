"""Packed data sets (``bigbatch pack``): records read by their place in a shard, crops decoded, bytes to the device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from train_loop.config import DataConfig
from train_loop.data import SMALL_IMAGE_SIZE, DataInfo, folder, sampling
from train_loop.data.decode import decode_crop, decode_whole
from train_loop.data.packed_files import PackedFiles
from train_loop.data.source import Batch, DataSource, Epoch
from train_loop.data.subset import subset_rows
from train_loop.errors import ImageError

SHIFT = 1 / 8
"""Of the side: how far small images are moved, 4 pixels of CIFAR's 32 (He et al. 2016, §4.2)."""


class PackedSource(DataSource):
    """Batches are uint8 ``[N, H, W, 3]`` until ``finish``."""

    def __init__(self, config: DataConfig, info: DataInfo) -> None:
        super().__init__(info)
        assert info.path is not None  # describe has found it there
        self._config = config
        self._files = PackedFiles(info.path)
        packed = self._files.info
        train = np.arange(packed.train_size, dtype=np.int64)
        if config.subset < 1:
            train = subset_rows(self._files.labels(train), config.subset)
        # Records of the images that an index counts.
        self._train, self._val = train, packed.train_size + np.arange(packed.val_size, dtype=np.int64)
        self._small = packed.largest_side <= SMALL_IMAGE_SIZE
        # Photographs as an image folder does, so that runs on either compare.
        self._mean, self._std = (packed.mean, packed.std) if self._small else (folder.MEAN, folder.STD)

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        return self._read(batches, self._train, epoch if self._config.augment else None)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        return self._read(batches, self._val, None)

    def finish(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(v, device=images.device) * 255 for v in (self._mean, self._std))
        return images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)

    def _read(
        self, batches: Sequence[sampling.Indices], records: sampling.Indices, epoch: Epoch | None
    ) -> Iterator[Batch]:
        if not batches:
            return
        loader = DataLoader(
            _Batches(self._files, batches, records, self.info.image_size, epoch, self._small),
            batch_size=None,  # an item is a batch already
            num_workers=min(self._config.loader_workers, len(batches)),
        )
        for item in loader:
            if isinstance(item, ImageError):
                raise item
            yield item


class _Batches(Dataset[Batch | ImageError]):
    """Item i is the i-th batch."""

    def __init__(
        self,
        files: PackedFiles,
        batches: Sequence[sampling.Indices],
        records: sampling.Indices,
        image_size: int,
        epoch: Epoch | None,
        small: bool,
    ) -> None:
        self._files, self._batches, self._records = files, batches, records
        self._size, self._epoch, self._small = image_size, epoch, small

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Batch | ImageError:
        indices = self._batches[number]
        pixels = torch.empty((len(indices), self._size, self._size, 3), dtype=torch.uint8)
        try:
            for place, index in enumerate(indices):
                self._image(int(index), pixels[place])
        except ImageError as error:
            return error  # raised in a loader process it would come out under a traceback of theirs
        return pixels, torch.from_numpy(self._files.labels(self._records[indices]))

    def _image(self, index: int, out: torch.Tensor) -> None:
        record = int(self._records[index])
        data = self._files.read(record)
        try:
            if self._epoch is None:
                self._plain(data, record, out)
            else:
                # The draws of an image folder: the same image has the same crop in either.
                draws = random.Random(f"{self._epoch.seed} {self._epoch.number} {index}")
                (self._shift if self._small else self._random_crop)(data, record, draws, out)
        except Exception as error:  # Pillow and torchvision raise many
            reason = error if self._files.is_intact(record, data) else "its bytes have changed (CRC-32)"
            raise ImageError(f"cannot decode {self._files.where(record)}: {reason}. Pack it again.") from None

    def _plain(self, data: bytes, record: int, out: torch.Tensor) -> None:
        if self._small:
            decode_crop(data, (0, 0, *self._files.size(record)), out)
        else:
            out.copy_(torch.from_numpy(np.array(folder.central_crop(decode_whole(data), self._size))))

    def _random_crop(self, data: bytes, record: int, draws: random.Random, out: torch.Tensor) -> None:
        decode_crop(data, folder.random_box(*self._files.size(record), draws), out)
        if draws.random() < 0.5:
            out.copy_(out.flip(1))

    def _shift(self, data: bytes, record: int, draws: random.Random, out: torch.Tensor) -> None:
        """Moved by up to an eighth, black where nothing comes in, mirrored half the time."""
        size, reach = self._size, round(self._size * SHIFT)
        whole = torch.empty_like(out)
        decode_crop(data, (0, 0, *self._files.size(record)), whole)
        right, down = draws.randint(-reach, reach), draws.randint(-reach, reach)
        if draws.random() < 0.5:
            whole = whole.flip(1)
        out.zero_()
        out[max(down, 0) : size + min(down, 0), max(right, 0) : size + min(right, 0)] = whole[
            max(-down, 0) : size - max(down, 0), max(-right, 0) : size - max(right, 0)
        ]
