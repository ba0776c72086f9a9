"""Data sources whose items come by key from torch's DataLoader: a training part and a validation part.

Whoever reads names the batches, so that our sampling decides what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.source import DataSource, Epoch
from bigbatch.train_loop.errors import LoaderError

Item = TypeVar("Item")
Collated = TypeVar("Collated")
Key = tuple[int, int, int]
"""Seed, epoch, index."""


class KeyedReader(Generic[Item, Collated]):
    """A DataLoader whose batches are given anew for each read."""

    def __init__(
        self, items: Dataset[Item], collate: Callable[[list[Item]], Collated], config: DataConfig, workers: int
    ) -> None:
        self._order = _GivenBatches()
        self._make = lambda: DataLoader(
            items,
            batch_sampler=self._order,
            num_workers=workers,
            collate_fn=collate,
            # In this process the upload does it, for what is not on the device already.
            pin_memory=config.loader.pin_memory and workers > 0 and torch.cuda.is_available(),
            persistent_workers=config.loader.persistent_workers and workers > 0,
            prefetch_factor=config.loader.prefetch_factor if workers else None,
            multiprocessing_context="fork" if workers else None,  # a user's data set need not pickle
            generator=torch.Generator(),  # the global one is the model's
        )
        self._loader: DataLoader[Item] | None = None
        self._busy = False

    def read(self, keys: Sequence[list[Key]]) -> Iterator[Collated]:
        """One collated batch for each list of keys. Raises LoaderError if a loader process dies."""
        if self._busy or self._loader is None:  # a read that was left early may have batches under way
            self.close()
            self._loader = self._make()
        self._order.batches = keys
        self._busy = True
        batches = iter(self._loader)
        while True:
            try:
                batch = next(batches, None)
            except RuntimeError as error:
                # torch raises this class for many errors: only its words tell that a process has died.
                if "DataLoader worker" not in str(error):
                    raise
                raise LoaderError(str(error).splitlines()[0], killed="killed by signal" in str(error)) from None
            if batch is None:
                break
            yield batch
            del batch
        self._busy = False

    def close(self) -> None:
        """Its processes end with it."""
        self._loader, self._busy = None, False


class _GivenBatches(Sampler[list[Key]]):
    def __init__(self) -> None:
        self.batches: Sequence[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class KeyedSource(DataSource, Generic[Item, Collated]):
    """What such sources share: each item is a function of (seed, epoch, index), whatever reads it when."""

    def __init__(
        self, info: DataInfo, workers: int, train: KeyedReader[Item, Collated], val: KeyedReader[Item, Collated]
    ) -> None:
        super().__init__(info)
        self._workers = workers
        self._parts = {False: train, True: val}

    @property
    def processes(self) -> int:
        """Worker processes of each DataLoader; 0 means that the training process reads items itself."""
        return self._workers

    def close(self) -> None:
        """End the worker processes."""
        for part in self._parts.values():
            part.close()

    def read_collated(self, validation: bool, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Collated]:
        """What ``collate`` made of each batch of indices. Raises LoaderError if a loader process dies."""
        keys = [[(epoch.seed, epoch.number, int(index)) for index in indices] for indices in batches]
        if keys:
            yield from self._parts[validation].read(keys)
