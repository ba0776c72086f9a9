"""Turn indices into batches of bytes, for every data set whose images are decoded when they are needed.

``IndexedImages`` reads one image; ``BatchFiller`` makes of it what training or validation sees; ``LoadedSource`` brings
whole batches, in this process or from loader processes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.config import AugmentConfig, DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.counts import loader_workers
from bigbatch.train_loop.data.pixels import boxes
from bigbatch.train_loop.data.pixels.auto_augment import augment
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch

WriteImage = Callable[[torch.Tensor], None]
"""Writes an image that was opened, to uint8 ``[H, W, 3]``. Raises ImageError."""

OPENED_TOGETHER = 16
"""Images that are opened before the first one is written. Interpreter and decoder displace each other's code from the
processor's caches, so rarer changes cost less. More JPEGs than the caches hold would lose this gain."""


class IndexedImages(ABC):
    """One part of a data set, by index. Loader processes are forks, and open its files anew."""

    @abstractmethod
    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """``[len(indices)]``."""

    def read_ahead(self, indices: sampling.Indices) -> None:  # noqa: B027  most have nothing to announce
        """Announce that this process or another will soon read these images, if that helps."""

    @abstractmethod
    def open_plain(self, index: int) -> WriteImage:
        """The image as validation sees it. May already read its bytes. Raises ImageError."""

    @abstractmethod
    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """A random crop or shift of it, not mirrored. ``draws`` are used here, or when the image is written."""

    def open_whole(self, index: int) -> WriteImage:
        """The image as a device keeps it, to crop it there. By default: as validation sees it."""
        return self.open_plain(index)


def image_draws(epoch: Epoch, index: int) -> random.Random:
    """The draws of an image in an epoch: of its crop or shift, of ``is_mirrored``, of further augmentation."""
    # A word as seed is hashed (SHA-512), the same in every process.
    return random.Random(f"{epoch.seed} {epoch.number} {index}")


def is_mirrored(draws: random.Random) -> bool:
    """Whether the image is to be mirrored: half of them are."""
    return draws.random() < 0.5


@dataclass(frozen=True)
class ReadPurpose:
    """The purpose for which a batch is read."""

    validation: bool
    epoch: Epoch | None
    """The epoch of the augmentation; None: images as validation sees them."""
    whole: bool = False
    """Training images as they are to be kept on the device."""


@dataclass(frozen=True)
class BatchFiller:
    """Writes images into a batch, in this process or in loader processes."""

    train: IndexedImages
    val: IndexedImages
    train_size: int
    augment: AugmentConfig = boxes.USUAL.augment

    def __call__(
        self, job: ReadPurpose, indices: sampling.Indices, pixels: torch.Tensor, places: range, ahead: sampling.Indices
    ) -> None:
        """Ask for the images of ``ahead``, and write those of ``places`` of a batch. Raises ImageError."""
        self.images(job).read_ahead(self.rows(job, ahead))
        for first in range(places.start, places.stop, OPENED_TOGETHER):
            some = range(first, min(first + OPENED_TOGETHER, places.stop))
            opened = deque(self.open_image(job, int(indices[place])) for place in some)
            for place in some:
                opened.popleft()(pixels[place])  # frees each image after it is written

    def images(self, job: ReadPurpose) -> IndexedImages:
        """The part that is read."""
        return self.val if job.validation else self.train

    def rows(self, job: ReadPurpose, indices: sampling.Indices) -> sampling.Indices:
        """The images' numbers: index i + c·train_size is copy c of training image i."""
        return indices if job.validation else indices % self.train_size

    def open_image(self, job: ReadPurpose, index: int) -> WriteImage:
        """The image as training sees it in an epoch, or as validation sees it. Raises ImageError.

        All random values of an image are drawn here. So they are a function of (seed, epoch, index) in any process, and
        the same image looks alike from an image folder and from a packed set.
        """
        if job.validation:
            return self.val.open_plain(index)
        row, epoch = index % self.train_size, job.epoch
        if job.whole:
            return self.train.open_whole(row)
        if epoch is None:
            return self.train.open_plain(row)
        draws = image_draws(epoch, index)
        write_random = self.train.open_random(row, draws)

        def write(out: torch.Tensor) -> None:
            write_random(out)
            if is_mirrored(draws):
                out.copy_(out.flip(1))
            if self.augment.policy != "none":
                augment(out, draws, self.augment)

        return write


class LoadedSource(DataSource):
    """Batches are uint8 ``[N, H, W, 3]`` until ``finish``."""

    def __init__(
        self,
        config: DataConfig,
        info: DataInfo,
        train: IndexedImages,
        val: IndexedImages,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(info, config.augment.copies)
        self.parts = train, val
        self._fill = BatchFiller(train, val, info.train_size, config.augment)
        self.config = config
        self.mean, self.std = tuple(mean), tuple(std)
        self._on_device: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        self._workers = loader_workers(config) if ring.ring_is_supported() else 0
        self._rings: list[ring.Ring] = []
        """Rings that no read uses: one, unless reads overlap."""

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Augmented batches on the CPU: uint8 ``[N, size, size, 3]``, and labels, int64 ``[N]``.

        Raises LoaderError, ImageError.
        """
        augmented = epoch if self.config.augment.enabled else None
        return self._read(ReadPurpose(False, augmented), batches, self.info.image_size)

    def read_whole(self, batches: Sequence[sampling.Indices], side: int) -> Iterator[Batch]:
        """Training images of ``side`` pixels as a device is to keep them: whole, if they are augmented there."""
        whole = self.config.augment.enabled
        return self._read(ReadPurpose(False, None, whole), batches, side)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """Central crops on the CPU: uint8 ``[N, size, size, 3]``, and labels, int64 ``[N]``.

        Raises LoaderError, ImageError.
        """
        return self._read(ReadPurpose(True, None), batches, self.config.val_image_size or self.info.image_size)

    def val_labels(self) -> sampling.Indices:
        """The classes of all validation images, int64 ``[N]``."""
        return self._fill.val.labels(np.arange(self.info.val_size + self.info.holdout_size))

    def finish(self, images: torch.Tensor) -> torch.Tensor:
        """Bytes ``[N, H, W, 3]`` on any device, as normalised float32 ``[N, 3, H, W]``, channels last in memory."""
        mean, std = self._statistics(images.device)
        # Channels-last in memory, as the bytes lie.
        return images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)

    def _statistics(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation in bytes' units. They are made once, because the host waits when it copies to a device."""
        if device not in self._on_device:
            with torch.inference_mode(False):  # training uses them after validation
                mean, std = (torch.tensor(v, device=device) * 255 for v in (self.mean, self.std))
            self._on_device[device] = mean, std
        return self._on_device[device]

    @property
    def processes(self) -> int:
        """Loader processes in use; 0 means that the training process decodes."""
        return self._workers

    def close(self) -> None:
        """End the loader processes. Batches that are still held stay valid."""
        while self._rings:
            self._rings.pop().close()

    def _read(self, job: ReadPurpose, batches: Sequence[sampling.Indices], size: int) -> Iterator[Batch]:
        if not batches:
            return
        coming = (self._read_in_ring if self._workers else self._read_here)(job, batches, size)
        images = self._fill.images(job)
        for indices in batches:
            pixels = next(coming)
            yield pixels, torch.from_numpy(images.labels(self._fill.rows(job, indices)))
            del pixels  # or its slot would be held while the next batch is waited for
        next(coming, None)  # to its end: its ring is free again

    def _read_here(self, job: ReadPurpose, batches: Sequence[sampling.Indices], size: int) -> Iterator[torch.Tensor]:
        ring.raise_malloc_thresholds()
        coming, most = ring.UpcomingIndices(batches), ring.IMAGES_AHEAD
        for indices in batches:
            pixels = torch.empty((len(indices), size, size, 3), dtype=torch.uint8)
            for first in range(0, len(indices), most):
                places = range(first, min(first + most, len(indices)))
                self._fill(job, indices, pixels, places, coming.take(len(places), len(places)))
            yield pixels

    def _read_in_ring(self, job: ReadPurpose, batches: Sequence[sampling.Indices], size: int) -> Iterator[torch.Tensor]:
        largest = max(map(len, batches))
        taken = self._rings.pop() if self._rings else None
        if taken is None or not taken.slots.fit(largest, size):
            if taken is not None:
                taken.close()
            # Validation takes two micro-batches at once. Page-locked slots use memory from the start (eight of 2 × 256
            # images of 224 pixels: 0.6 GB). Other slots use it when they are written: all after the first validation.
            side = max(self.info.image_size, self.config.val_image_size, size)
            taken = ring.Ring(self._fill, self._workers, 2 * largest, side, self.config.loader.pin_memory)
        done = False
        try:
            yield from taken.read(job, batches, size)
            done = True
        finally:
            if done and not self._rings:
                self._rings.append(taken)
            else:  # a read that was left early still has batches in progress
                taken.close()
