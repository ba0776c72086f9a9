"""From indices to batches of bytes, for every kind of data set whose images are decoded as they are needed.

``Images`` reads one image; ``write_image`` makes of it what training or validation sees; ``LoadedSource`` brings
whole batches, in this process or from loader processes.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from train_loop.config import DataConfig
from train_loop.data import DataInfo, sampling
from train_loop.data.auto_augment import policy_of
from train_loop.data.resizing import train_image_size
from train_loop.data.source import Batch, DataSource, Epoch
from train_loop.errors import ImageError


class Images(ABC):
    """One part of a data set, by index. It goes to loader processes by fork or pickle and opens its files there."""

    @abstractmethod
    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """``[len(indices)]``."""

    @abstractmethod
    def write_plain(self, index: int, out: torch.Tensor) -> None:
        """The image as validation sees it, into ``out``, uint8 ``[H, W, 3]``. Raises ImageError."""

    @abstractmethod
    def write_random(self, index: int, draws: random.Random, out: torch.Tensor) -> None:
        """A random crop or shift of it, not mirrored. Raises ImageError."""


class Copies(Images):
    """Index i + c·size is copy c of image i: another index, hence other draws of the same image."""

    def __init__(self, images: Images, size: int) -> None:
        self._images, self._size = images, size

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        return self._images.labels(indices % self._size)

    def write_plain(self, index: int, out: torch.Tensor) -> None:
        self._images.write_plain(index % self._size, out)

    def write_random(self, index: int, draws: random.Random, out: torch.Tensor) -> None:
        self._images.write_random(index % self._size, draws, out)


def write_image(images: Images, index: int, epoch: Epoch | None, out: torch.Tensor) -> None:
    """What training sees of an image in an epoch, or validation (None), as uint8 ``[H, W, 3]``.

    All that is random in an image is drawn here, so it is a function of (seed, epoch, index) in any process, and
    the same image looks alike from an image folder and from a packed set.
    """
    if epoch is None:
        images.write_plain(index, out)
        return
    # A word as seed is hashed (SHA-512), the same in every process.
    draws = random.Random(f"{epoch.seed} {epoch.number} {index}")
    images.write_random(index, draws, out)
    if draws.random() < 0.5:
        out.copy_(out.flip(1))
    if epoch.policy is not None:
        epoch.policy.apply(out, draws)


class LoadedSource(DataSource):
    """Batches are uint8 ``[N, H, W, 3]`` until ``finish``."""

    def __init__(
        self,
        config: DataConfig,
        info: DataInfo,
        train: Images,
        val: Images,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(info, config.copies)
        self._train = Copies(train, info.train_size) if config.copies > 1 else train
        self._config, self._val = config, val
        self._mean, self._std = tuple(mean), tuple(std)

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        augmented = dataclasses.replace(epoch, policy=policy_of(self._config)) if self._config.augment else None
        size = train_image_size(self._config, self.info.image_size, epoch.number)
        return self._read(self._train, batches, size, augmented)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        return self._read(self._val, batches, self._config.val_image_size or self.info.image_size, None)

    def finish(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(v, device=images.device) * 255 for v in (self._mean, self._std))
        # Channels-last in memory, as the bytes lie.
        return images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)

    def _read(
        self, images: Images, batches: Sequence[sampling.Indices], image_size: int, epoch: Epoch | None
    ) -> Iterator[Batch]:
        if not batches:
            return
        loader = DataLoader(
            _Batches(images, batches, image_size, epoch),
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
        self, images: Images, batches: Sequence[sampling.Indices], image_size: int, epoch: Epoch | None
    ) -> None:
        self._images, self._batches, self._size, self._epoch = images, batches, image_size, epoch

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Batch | ImageError:
        indices = self._batches[number]
        pixels = torch.empty((len(indices), self._size, self._size, 3), dtype=torch.uint8)
        try:
            for place, index in enumerate(indices):
                write_image(self._images, int(index), self._epoch, pixels[place])
        except ImageError as error:
            return error  # raised in a loader process it would come out under a traceback of theirs
        return pixels, torch.from_numpy(self._images.labels(indices))
