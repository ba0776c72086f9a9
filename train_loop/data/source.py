"""Batches of images for training, validation and BatchNorm statistics, from any kind of data set."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigbatch.train_loop.config import BatchSplit
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.plugins.nested import Nested

Batch = tuple[Nested, Nested]
"""Inputs and targets, on the CPU. Images are float32 ``[N, 3, H, W]``, normalised, or the input of
``DataSource.finish``; labels are int64 ``[N]``. A data set of the user's own gives any tensors, see ``nested``."""


@dataclass(frozen=True)
class Epoch:
    """Augmentation depends on this and on the image's index."""

    seed: int
    number: int


class Step:
    """The micro-batches of one optimizer step, for one iteration: each is fetched when it is asked for.

    So a device computes with one while the next is fetched, and few slots of the loader are held.
    """

    def __init__(self, count: int, batches: Iterator[Batch]) -> None:
        self._count, self._left = count, itertools.islice(batches, count)
        self._given = 0

    def __len__(self) -> int:
        """The number of micro-batches of the whole step, fetched or not."""
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._left:
            self._given += 1
            yield batch
            del batch  # or its slot would be held while the next one is waited for
        if self._given < self._count:
            raise RuntimeError(f"a step has {self._count} micro-batches; the source brought {self._given}")


class DataSource(ABC):
    """A data set that is open. A data set of another kind implements ``read_train`` and ``read_val``."""

    def __init__(self, info: DataInfo, repeats: int = 1) -> None:
        """With ``repeats`` above 1, an index of ``read_train`` names a copy, see ``sampling.train_order``."""
        self.info, self._repeats = info, repeats

    @abstractmethod
    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Training images by their indices, augmented as a function of epoch and index alone.

        Index i + c·train_size is copy c of image i (repeated augmentation).
        """

    @abstractmethod
    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """Validation images by their indices."""

    @abstractmethod
    def val_labels(self) -> sampling.Indices:
        """The classes of all validation images, int64 ``[N]``, for ``data.holdout``."""

    def finish(self, images: Nested) -> Nested:
        """A batch's images, already on the device, as the model takes them: float32 ``[N, 3, H, W]``, normalised.

        Sources that read bytes send the bytes, a quarter of the size, and normalise here.
        """
        return images

    @property
    def processes(self) -> int:
        """Loader processes that this source reads with at the moment."""
        return 0

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """End what reads for this source; it may be used again."""

    def train_steps(
        self, seed: int, epoch: int, batch: BatchSplit, rank: int, start_step: int = 0, drop_last: bool = True
    ) -> Iterator[Step]:
        """For each optimizer step from ``start_step`` on, this rank's ``accumulation_steps`` micro-batches.

        A micro-batch is fetched when the step is asked for it. Unused micro-batches of a step are skipped when the next
        step is asked for. Images that do not fill a global batch are dropped, or make a smaller step; the order of an
        epoch is a function of (seed, epoch). See ``sampling.train_micro_batches``.
        """
        size = self.info.train_size
        steps = list(
            sampling.train_micro_batches(size, seed, epoch, batch, rank, start_step, self._repeats, drop_last=drop_last)
        )
        read = self.read_train([micro for step in steps for micro in step], Epoch(seed, epoch))
        for count in map(len, steps):
            step = Step(count, read)
            yield step
            deque(step, maxlen=0)  # fetch and discard those that were not used
        for _ in read:  # read to the end, so that the reader is free again
            raise RuntimeError(f"a source must bring one batch for each that was asked; got more than {len(steps)}")

    def train_batches(
        self, seed: int, epoch: int, batch: BatchSplit, rank: int, start_step: int = 0, drop_last: bool = True
    ) -> Iterator[list[Batch]]:
        """``train_steps`` with all micro-batches of a step at once. Benchmarks and tests use it; training does not."""
        for step in self.train_steps(seed, epoch, batch, rank, start_step, drop_last):
            yield list(step)

    def val_batches(self, batch_size: int, rank: int, workers: int) -> Iterator[Batch]:
        """This rank's share of the validation images that choose; over all ranks each image comes exactly once."""
        batches = sampling.val_batches(self.info.val_size, batch_size, rank, workers)
        return self.read_val(batches if self._val_parts is None else [self._val_parts[0][batch] for batch in batches])

    def holdout_batches(self, batch_size: int, rank: int, workers: int) -> Iterator[Batch]:
        """The same for the validation images that only report: none without ``data.holdout``."""
        batches = sampling.val_batches(self.info.holdout_size, batch_size, rank, workers)
        return self.read_val([] if self._val_parts is None else [self._val_parts[1][batch] for batch in batches])

    @functools.cached_property
    def _val_parts(self) -> tuple[sampling.Indices, sampling.Indices] | None:
        """The validation images that choose and those that report, by their indices; None if all choose."""
        reports = self.info.holdout_size
        if not reports:
            return None
        return sampling.holdout_rows(self.val_labels(), reports)

    def bn_batches(
        self, seed: int, epoch: int, micro_size: int, count_images: int, rank: int, workers: int
    ) -> Iterator[Batch]:
        """This rank's share of ``count_images`` training images, augmented as in training.

        In whole micro-batches, for precise BatchNorm statistics. A rank may have none.
        """
        batches = sampling.bn_batches(self.info.train_size, seed, epoch, micro_size, count_images, rank, workers)
        return self.read_train(batches, Epoch(seed, epoch))
