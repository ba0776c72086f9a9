"""Turn indices into batches of bytes, for every data set whose images are decoded when they are needed.

``Images`` reads one image; ``open_image`` makes of it what training or validation sees; ``LoadedSource`` brings
whole batches, in this process or from loader processes.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading import read_ahead, ring
from bigbatch.train_loop.data.loading.counts import loader_workers
from bigbatch.train_loop.data.loading.malloc import raise_malloc_thresholds
from bigbatch.train_loop.data.pixels import boxes
from bigbatch.train_loop.data.pixels.auto_augment import augment_policy
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch
from bigbatch.train_loop.errors import ImageError

WriteImage = Callable[[torch.Tensor], None]
"""Writes an image that was opened, to uint8 ``[H, W, 3]``. Raises ImageError."""

OPENED_TOGETHER = 16
"""Images that are opened before the first is written: interpreter and decoder drive each other's code out of the
processor's caches, so taking turns less often costs less. More than the caches hold of JPEGs would lose that again."""


class IndexedImages(ABC):
    """One part of a data set, by index. It goes to loader processes by fork or pickle and opens its files there."""

    @abstractmethod
    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """``[len(indices)]``."""

    def read_ahead(self, indices: sampling.Indices) -> None:  # noqa: B027  most have nothing to say
        """Announce that this process or another will soon read these images, if that helps."""

    @abstractmethod
    def open_plain(self, index: int) -> WriteImage:
        """The image as validation sees it. May already read its bytes. Raises ImageError."""

    @abstractmethod
    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """A random crop or shift of it, not mirrored. ``draws`` are used in here or as it is written."""


class WholeImages(IndexedImages):
    """Images that may be kept whole, decoded, so that ``open_random`` is a part of one: see ``device_source.py``."""

    @abstractmethod
    def whole_side(self, size: int) -> int:
        """Pixels a side of the whole images, for training at ``size`` pixels; 0: they are not square and of one size.

        Few images may be looked at to tell: ``open_whole`` meets others.
        """

    @abstractmethod
    def open_whole(self, index: int) -> WriteImage:
        """The whole image, to be written to ``[side, side, 3]``. Raises ImageError for another size, too."""

    @abstractmethod
    def draw_window(self, side: int, draws: random.Random) -> boxes.Box:
        """The part of a whole image that ``open_random`` writes, after the same draws; black where there is none."""

    @abstractmethod
    def content(self) -> bytes:
        """A digest that differs where the images do."""


class RepeatedImages(IndexedImages):
    """Index i + c·size is copy c of image i: another index, hence other draws of the same image."""

    def __init__(self, images: IndexedImages, size: int) -> None:
        self._images, self._size = images, size

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """The classes, int64 ``[len(indices)]``."""
        return self._images.labels(indices % self._size)

    def read_ahead(self, indices: sampling.Indices) -> None:
        """As ``Images.read_ahead``, of the images that are repeated."""
        self._images.read_ahead(indices % self._size)

    def open_plain(self, index: int) -> WriteImage:
        """As ``Images.open_plain``, of the image that is repeated."""
        return self._images.open_plain(index % self._size)

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """As ``Images.open_random``, with different random draws for each copy."""
        return self._images.open_random(index % self._size, draws)


def open_image(images: IndexedImages, index: int, epoch: Epoch | None) -> WriteImage:
    """The part of an image that training sees in an epoch, or that validation sees (None). Raises ImageError.

    All that is random in an image is drawn here, so it is a function of (seed, epoch, index) in any process, and
    the same image looks alike from an image folder and from a packed set.
    """
    if epoch is None:
        return images.open_plain(index)
    draws = image_draws(epoch, index)
    write_random = images.open_random(index, draws)

    def write(out: torch.Tensor) -> None:
        write_random(out)
        if is_mirrored(draws):
            out.copy_(out.flip(1))
        if epoch.policy is not None:
            epoch.policy.apply(out, draws)

    return write


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


@dataclass(frozen=True)
class BatchFiller:
    """Writes images into a batch, in this process or in loader processes."""

    train: IndexedImages
    val: IndexedImages
    skip_bad: bool
    """Otherwise the first bad image is an ImageError."""

    def __call__(
        self, job: ReadPurpose, indices: sampling.Indices, pixels: torch.Tensor, places: range, ahead: sampling.Indices
    ) -> list[ring.BadImage]:
        """Ask for the images of ``ahead``, write those of ``places`` of a batch, and say which could not be read.

        In training the image of the next place that can be read stands in for a bad one, so that the batch keeps
        its size whatever the number of processes; in validation the place is left out.
        """
        self._images(job).read_ahead(ahead)
        bad: list[ring.BadImage] = []
        for first in range(places.start, places.stop, OPENED_TOGETHER):
            some = range(first, min(first + OPENED_TOGETHER, places.stop))
            # From the end, as pop() takes the last one.
            opened = [self._open(job, int(indices[place])) for place in reversed(some)]
            bad.extend(
                (place, self._stand_in(job, indices, place, pixels[place], reason), reason)
                for place in some
                if (reason := self._why_not(opened.pop(), pixels[place]))  # popped: it is gone once it is written
            )
        return bad

    def _images(self, job: ReadPurpose) -> IndexedImages:
        return self.val if job.validation else self.train

    def _open(self, job: ReadPurpose, index: int) -> WriteImage:
        """The image; if it cannot be read, the reason."""
        try:
            return open_image(self._images(job), index, job.epoch)
        except ImageError as error:
            reason = error

        def fail(out: torch.Tensor) -> None:
            raise reason

        return fail

    def _why_not(self, write: WriteImage, out: torch.Tensor) -> str:
        """Write the image. Returns why it failed; empty on success."""
        try:
            write(out)
        except ImageError as error:
            if not self.skip_bad:
                raise
            return str(error)
        return ""

    def _stand_in(
        self, job: ReadPurpose, indices: sampling.Indices, place: int, out: torch.Tensor, reason: str
    ) -> int | None:
        """The place whose image replaces a bad one; None if the place is left out."""
        if job.validation:
            return None
        for step in range(1, len(indices)):
            source = (place + step) % len(indices)
            if not self._why_not(self._open(job, int(indices[source])), out):
                return source
        raise ImageError(f"no image of a batch of {len(indices)} can be read; the first: {reason}")


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
        self._fill = BatchFiller(
            RepeatedImages(train, info.train_size) if config.augment.copies > 1 else train,
            val,
            config.on_bad_image == "skip",
        )
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
        augmented = (
            dataclasses.replace(epoch, policy=augment_policy(self.config.augment))
            if self.config.augment.enabled
            else None
        )
        return self._read(ReadPurpose(False, augmented), batches, self.info.image_size)

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
        """Mean and deviation in bytes' units. Made once: to bring them to a device the host waits for it."""
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
        read = self._read_in_ring if self._workers else self._read_here
        part = self.info.val_size + self.info.holdout_size if job.validation else self.info.train_size
        images = self._fill.val if job.validation else self._fill.train
        coming = read(job, batches, size)
        for indices in batches:
            pixels, bad = next(coming)
            sources: list[int | None] = list(range(len(indices)))
            for place, source, message in bad:
                sources[place] = source
                self.note_bad(job.validation, int(indices[place]) % part, message)  # a copy of an image is that image
            kept = [source for source in sources if source is not None]
            if len(kept) < len(indices):
                pixels = pixels[[place for place, source in enumerate(sources) if source is not None]]
            if kept:
                yield pixels, torch.from_numpy(images.labels(indices[kept]))
            del pixels  # or its slot would be held while the next batch is waited for
        for _ in coming:  # read to the end: its ring is free again
            raise RuntimeError(f"there is one batch for each that was asked; got more than {len(batches)}")

    def _read_here(
        self, job: ReadPurpose, batches: Sequence[sampling.Indices], size: int
    ) -> Iterator[tuple[torch.Tensor, list[ring.BadImage]]]:
        raise_malloc_thresholds()
        coming = read_ahead.UpcomingIndices(batches)
        for indices in batches:
            pixels = torch.empty((len(indices), size, size, 3), dtype=torch.uint8)
            bad: list[ring.BadImage] = []
            for first in range(0, len(indices), read_ahead.MAX_IMAGES_AHEAD):
                places = range(first, min(first + read_ahead.MAX_IMAGES_AHEAD, len(indices)))
                bad += self._fill(job, indices, pixels, places, coming.take(len(places), len(places)))
            yield pixels, bad

    def _read_in_ring(
        self, job: ReadPurpose, batches: Sequence[sampling.Indices], size: int
    ) -> Iterator[tuple[torch.Tensor, list[ring.BadImage]]]:
        largest = max(map(len, batches))
        taken = self._rings.pop() if self._rings else None
        if taken is None or not taken.slots.fit(largest, size):
            if taken is not None:
                taken.close()
            # Validation takes two micro-batches at once. Page-locked slots are in
            # memory at once (eight of 2 × 256 images of 224 pixels: 0.6 GB), others as they are written to: all of it
            # after the first validation.
            side, config = max(self.info.image_size, self.config.val_image_size, size), self.config
            taken = ring.Ring(
                self._fill, self._workers, 2 * largest, side, config.loader.slots, config.loader.pin_memory
            )
        read = taken.read(job, batches, size)
        try:
            yield from read
        finally:
            read.close()
            if taken.open and not self._rings:
                self._rings.append(taken)
            else:
                taken.close()
