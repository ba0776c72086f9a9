"""A data source whose items come by key from torch's DataLoader: a training part and a validation part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading.torch_loader import KeyedReader
from bigbatch.train_loop.data.source import DataSource, Epoch

Item = TypeVar("Item")
Collated = TypeVar("Collated")


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
