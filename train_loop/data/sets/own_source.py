"""Batches of a data set of the user's own: its items behind torch's DataLoader, in the order of ``sampling.py``.

Each item is a function of (seed, epoch, index), whatever reads it when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading.counts import loader_workers
from bigbatch.train_loop.data.sets.own_sets import OwnSet, known_labels, own_sets
from bigbatch.train_loop.data.sets.subset import subset_rows
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch
from bigbatch.train_loop.errors import LoaderError, OwnCodeError
from bigbatch.train_loop.plugins.nested import Nested, tensors_of

Key = tuple[int, int, int]
"""Seed, epoch, index."""


@dataclass(frozen=True)
class Refused:
    """What was wrong with an item or a batch; a loader process sends it in place of the batch."""

    message: str


class OwnSource(DataSource):
    """A pair of map-style data sets."""

    def __init__(self, config: DataConfig, info: DataInfo, note: Callable[[str], None]) -> None:
        super().__init__(info)
        sets, self._workers = own_sets(config), loader_workers(config)
        if self._workers and (device := _other_device(sets.train)):
            self._workers = 0
            note(f"no loader processes: the items of {sets.train.word} are on {device}, where only this process reads")
        self._parts = {part is sets.val: _Reader(part, config, self._workers) for part in (sets.train, sets.val)}
        self._val_labels = known_labels(sets.val.items, sets.val.size)
        labels = known_labels(sets.train.items, sets.train.size)
        for key, part, found in (
            ("subset", config.subset < 1, labels),
            ("holdout", config.holdout > 0, self._val_labels),
        ):
            if part and found is None:
                note(f"data.{key} is drawn at random, not of each class alike: the data set has no .targets")
        if self._val_labels is None:
            # As if of one class: the stratified draw is then a plain one.
            self._val_labels = np.zeros(sets.val.size, np.int64)
        if labels is None:
            labels = np.zeros(sets.train.size, np.int64)
        self._rows = subset_rows(labels, config.subset) if config.subset < 1 else np.arange(sets.train.size)

    @property
    def processes(self) -> int:
        """Worker processes of each DataLoader; 0 means that the training process reads items itself."""
        return self._workers

    def close(self) -> None:
        """End the worker processes."""
        for part in self._parts.values():
            part.close()

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Batches as ``collate_fn`` makes them, where the items are.

        Raises OwnCodeError for what the user's code raises and for items that make no batch, and LoaderError.
        """
        return self._read(False, [self._rows[indices] for indices in batches], epoch)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """The same of the validation set. Random draws of its items are the same in each epoch."""
        return self._read(True, batches, Epoch(0, 0))

    def val_labels(self) -> sampling.Indices:
        """The classes of all validation items, int64 ``[N]``; all 0 if the data set does not name them."""
        assert self._val_labels is not None
        return self._val_labels

    def _read(self, validation: bool, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        keys = [[(epoch.seed, epoch.number, int(index)) for index in indices] for indices in batches]
        for found in self._parts[validation].read(keys):
            if isinstance(found, Refused):
                raise OwnCodeError(found.message)  # ConfigErrors are those that all ranks meet
            yield found
            # Kept, it would hold a batch while the next one is read.
            del found


def _other_device(items: OwnSet) -> str | None:
    """Where a tensor of the first item is, if not on the CPU. A forked process could not use it."""
    return next((str(one.device) for one in tensors_of(items.item(0, 0, 0)) if one.device.type != "cpu"), None)


class _Reader:
    """A DataLoader whose batches are given anew for each read, so that our sampling decides what is read."""

    def __init__(self, items: OwnSet, config: DataConfig, workers: int) -> None:
        self._order = _GivenBatches()
        self._make = lambda: DataLoader(
            _Items(items),
            batch_sampler=self._order,
            num_workers=workers,
            collate_fn=_Collate(items),
            # In this process the upload does it, for what is not on the device already.
            pin_memory=config.loader.pin_memory and workers > 0 and torch.cuda.is_available(),
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,  # a user's data set need not pickle
            generator=torch.Generator(),  # the global one is the model's
        )
        self._loader: DataLoader[object] | None = None
        self._busy = False

    def read(self, keys: Sequence[list[Key]]) -> Iterator[Batch | Refused]:
        """One collated batch for each list of keys. Raises LoaderError if a loader process dies."""
        if not keys:
            return
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


class _Items(Dataset["tuple[int, tuple[Nested, Nested]] | Refused"]):
    """Items by key, each with its index."""

    def __init__(self, items: OwnSet) -> None:
        self._items = items

    def __len__(self) -> int:
        return self._items.size

    def __getitem__(self, key: Key) -> tuple[int, tuple[Nested, Nested]] | Refused:
        try:
            return key[2], self._items.item(*key)
        except (OwnCodeError, ConfigError) as error:
            return Refused(str(error))


class _Collate:
    """Items as a batch, or the first thing that is wrong."""

    def __init__(self, items: OwnSet) -> None:
        self._items = items

    def __call__(self, items: Sequence[tuple[int, tuple[Nested, Nested]] | Refused]) -> Batch | Refused:
        for item in items:
            if isinstance(item, Refused):
                return item
        try:
            return self._items.batch([item for item in items if not isinstance(item, Refused)])
        except (OwnCodeError, ConfigError) as error:
            return Refused(str(error))
