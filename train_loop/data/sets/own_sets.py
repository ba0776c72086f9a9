"""Data sets of a user's own: the pair that the function of ``data.name=FILE.py:FUNCTION`` returns, and its batches.

torch's DataLoader reads the items, in the order of ``sampling.py``. Each item is a function of (seed, epoch, index),
whichever process reads it, and whenever.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.config.own_names import absolute, code_fingerprint
from bigbatch.train_loop.config.rules import Options
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.data.loading.counts import loader_workers
from bigbatch.train_loop.data.sets.subset import subset_rows
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch
from bigbatch.train_loop.errors import LoaderError, OwnCodeError
from bigbatch.train_loop.plugins.nested import Nested, map_tensors, tensors_of
from bigbatch.train_loop.plugins.registry import loaded, users_code

KEY = "data.name"
LOOK_AT = 8
"""Items that are collated before a run starts."""
PARTS = ("training", "validation")

Item = tuple[Nested, Nested]
"""Inputs and target."""
ItemKey = tuple[int, int, int]
"""Seed, epoch, index."""


@dataclass(frozen=True)
class OwnSet:
    """The training or the validation set."""

    word: str
    """``data.name``, with an absolute path."""
    part: str
    items: Any
    size: int
    collate: Any
    """The training set's ``collate_fn``; None: torch's own."""
    num_classes: int
    """Classes of the training set; 0: not known."""

    def item(self, seed: int, epoch: int, index: int) -> Item:
        """The item. It is the same for the same arguments in any process.

        Raises OwnCodeError for what the data set raises, and ConfigError for an item that is no pair.
        """
        with seeded_draws(self.part, seed, epoch, index), users_code(KEY, self.word):
            found = self.items[index]
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ConfigError(
                f"{KEY}={self.word} must give items that are pairs (inputs, target); got a {type(found).__name__} as "
                f"{self.part} item {index}. Write `return inputs, target` in __getitem__."
            )
        return found[0], found[1]

    def batch(self, items: Sequence[Item]) -> Item:
        """Items as inputs and targets.

        Raises OwnCodeError for what ``collate_fn`` raises, and ConfigError for items that make no batch.
        """
        if self.collate is None:
            try:
                inputs, targets = _default_batch(items)
            except (RuntimeError, TypeError, ValueError, KeyError) as error:
                reason = str(error).splitlines()[0].rstrip(". ")
                raise ConfigError(
                    f"{KEY}={self.word} must give items that make a batch; got {self.part} items of which torch says: "
                    f"{reason}. Return tensors of one shape, or give the data set a collate_fn."
                ) from None
        else:
            with users_code(KEY, self.word):
                inputs, targets = self.collate(list(items))
        first = next(tensors_of(targets), None)
        if first is None or first.ndim == 0 or len(first) != len(items):
            got = "none" if first is None else f"shape {tuple(first.shape)}"
            raise ConfigError(
                f"{KEY}={self.word} must make batches whose first target tensor has an entry for each item; got {got} "
                f"for {len(items)} items. Put such a tensor first, e.g. the number of boxes of each image."
            )
        classes = targets is first and first.ndim == 1 and _is_whole(first) and first.device.type == "cpu"
        # On a GPU the loss would only say that the device failed. torch's losses leave out items of -100.
        known = self.num_classes if classes else 0
        if known and not 0 <= int(first.min()) <= int(first.max()) < known:
            wrong = [each for each in first.tolist() if each != -100 and not 0 <= each < known]
            if wrong:
                raise ConfigError(
                    f"{KEY}={self.word} must give classes from 0 to {known - 1}, below its num_classes; got {wrong[0]} "
                    f"in {self.part}. Count classes from 0, or correct num_classes."
                )
        return inputs, targets


def own_sets(config: DataConfig) -> tuple[OwnSet, OwnSet]:
    """The training and the validation set; the function is called once in a process for the same options.

    While it runs, the global generators of Python, NumPy and torch are seeded, so that all ranks and all trials have
    the same data, also if it is drawn.

    Raises:
        ConfigError: no such function, another signature, or a result that is no two data sets.
        OwnCodeError: the user's code raised an exception.
    """
    word = absolute(KEY, config.name)
    key = word, config.options, code_fingerprint(KEY, word)
    if key not in _latest:
        _latest.clear()  # before others are made: two data sets may not fit into the memory
        _latest[key] = _made(word, config.options)
    return _latest[key]


_latest: dict[tuple[str, Options, str], tuple[OwnSet, OwnSet]] = {}
"""The sets that were made last, by their function, its options and its code."""


def _made(word: str, options: Options) -> tuple[OwnSet, OwnSet]:
    function = loaded(KEY, word, (), options)
    with seeded_draws("data set"), users_code(KEY, word):
        made: Any = function(**options)
        ok = isinstance(made, (tuple, list)) and len(made) == 2 and all(map(_is_map_style, made))
        empty = [part for part, items in zip(PARTS, made, strict=True) if not len(items)] if ok else []
    if not ok:
        raise ConfigError(
            f"{KEY}={word} must return a pair (train, val) of map-style data sets, with __getitem__ and __len__; got "
            f"another {type(made).__name__}. Write `return train, val`."
        )
    if empty:
        raise ConfigError(
            f"{KEY}={word} must return a training and a validation set with items; got no {empty[0]} items. Look where "
            "it reads them, or divide what it has: torch.utils.data.random_split(items, [0.9, 0.1])."
        )
    train = made[0]
    labels, names = known_labels(train, None), _class_names(train)
    classes = getattr(train, "num_classes", None)
    if classes is None:
        classes = len(names) or (int(labels.max()) + 1 if labels is not None else 0)
    train, val = (
        OwnSet(word, part, items, len(items), getattr(train, "collate_fn", None), int(classes))
        for part, items in zip(PARTS, made, strict=True)
    )
    return train, val


def _is_map_style(items: object) -> bool:
    has_both = hasattr(items, "__getitem__") and hasattr(items, "__len__")
    return has_both and not isinstance(items, (IterableDataset, dict, str))  # which have both, but not by number


def _class_names(items: object) -> tuple[str, ...]:
    """torchvision's data sets have ``classes``."""
    names = getattr(items, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else ()


def known_labels(items: object, size: int | None) -> sampling.Indices | None:
    """The classes of all items, int64 ``[N]``, where the data set names them as torchvision's do: ``targets``; None
    where it does not, or they are no classes."""
    try:
        labels = np.asarray(getattr(items, "targets", None))
    except (ValueError, TypeError, RuntimeError):
        return None
    # A set that wraps a part of another may pass on all its labels: their number reveals it.
    ok = labels.ndim == 1 and len(labels) and labels.dtype.kind in "iu" and size in (None, len(labels))
    return labels.astype(np.int64) if ok else None


def describe_own(config: DataConfig, open_some: bool) -> DataInfo:
    """The facts of a data set of the user's own, from its lengths and its first item.

    Args:
        open_some: also make a batch of its first items, of training and of validation.

    Raises ConfigError and OwnCodeError as ``own_sets``, and for items that make no batch.
    """
    sets = own_sets(config)
    for part in sets if open_some else ():
        part.batch([part.item(0, 0, index) for index in range(min(part.size, LOOK_AT))])
    train, val = sets
    inputs, target = train.item(0, 0, 0)
    shape = tuple(inputs.shape) if isinstance(inputs, (torch.Tensor, np.ndarray)) else ()
    is_image = len(shape) == 3 and shape[1] == shape[2]
    size = int(shape[1]) if is_image else 0
    _refuse_image_keys(config, size)
    return DataInfo(
        name=train.word.rpartition("/")[2],
        path=train.word,
        train_size=train.size,
        val_size=val.size,
        num_classes=train.num_classes,
        image_size=size,
        channels=int(shape[0]) if is_image else 0,
        class_names=_class_names(train.items),
        stem="small" if size <= SMALL_IMAGE_SIZE else "imagenet",
        input_shape=shape,
        are_classes=_is_class(target),
    )


def _refuse_image_keys(config: DataConfig, image_size: int) -> None:
    """Raise ConfigError for a key that changes images: items of a user's own are as its code makes them."""
    plain = DataConfig()
    own_size = {"image_size": image_size, "val_image_size": image_size}
    keys = ("image_size", "val_image_size", "val_crop", "val_part", "augment", "mix")
    changed = [f"data.{key}" for key in keys if getattr(config, key) not in (getattr(plain, key), own_size.get(key))]
    changed += ["data.loader.name"] if config.loader.name != plain.loader.name else []
    if changed:
        raise ConfigError(
            f"{changed[0]} changes images, and a data set of one's own makes its items itself; got another than the "
            f"default with {KEY}={config.name}. Leave it out, or give the function an option "
            "(--set data.options.NAME=VALUE)."
        )


def _is_class(target: Nested) -> bool:
    """Whether a target is one whole number."""
    if isinstance(target, torch.Tensor):
        return target.ndim == 0 and _is_whole(target)
    is_single = isinstance(target, (int, np.generic, np.ndarray)) and np.ndim(target) == 0
    return is_single and np.asarray(target).dtype.kind in "iub"


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""Types of labels, from NumPy, that torch can store but not compare."""


@torch.no_grad()
def _default_batch(items: Sequence[Item]) -> Item:
    """torch's default collation, with Python's and NumPy's double precision as float32, which models compute in, and
    without the gradients of items that a network has made: loader processes could not pass them on."""
    inputs, targets = (default_collate([item[place] for item in items]) for place in (0, 1))
    return _single(inputs), map_tensors(lambda one: one.long() if one.dtype in WIDE else one, _single(targets))


def _single(batch: Nested) -> Nested:
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor, batch)


@contextmanager
def seeded_draws(*position: object) -> Iterator[None]:
    """Within the block the three global generators start from ``position`` alone. Afterwards they have their state from
    before the block, because in the training process the model uses them.

    torch's generator here is the CPU's. Generators that the user's code makes itself are not seeded.
    """
    # hash() of text differs in each process.
    digest = hashlib.blake2b(repr(position).encode(), digest_size=32).digest()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, np.uint32))
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


# --- batches ---


class OwnSource(DataSource):
    """A pair of map-style data sets."""

    def __init__(self, config: DataConfig, info: DataInfo) -> None:
        super().__init__(info)
        train, val = own_sets(config)
        self._workers = loader_workers(config)
        self._readers = [_Reader(part, config, self._workers) for part in (train, val)]
        # Without labels all items count as one class: a stratified draw is then a plain one.
        labels, val_labels = (known_labels(part.items, part.size) for part in (train, val))
        self._val_labels = np.zeros(val.size, np.int64) if val_labels is None else val_labels
        self._rows = subset_rows(np.zeros(train.size, np.int64) if labels is None else labels, config.subset)

    @property
    def processes(self) -> int:
        """Worker processes of each DataLoader; 0 means that the training process reads items itself."""
        return self._workers

    def close(self) -> None:
        """End the worker processes."""
        for reader in self._readers:
            reader.close()

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Batches as ``collate_fn`` makes them, where the items are.

        Raises OwnCodeError for what the user's code raises and for items that make no batch, and LoaderError.
        """
        return self._readers[0].read([self._rows[indices] for indices in batches], epoch)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """The same of the validation set. Random draws of its items are the same in each epoch."""
        return self._readers[1].read(batches, Epoch(0, 0))

    def val_labels(self) -> sampling.Indices:
        """The classes of all validation items, int64 ``[N]``; all 0 if the data set does not name them."""
        return self._val_labels


class _Reader:
    """A DataLoader whose batches are given anew for each read, so that our sampling decides what is read."""

    def __init__(self, items: OwnSet, config: DataConfig, workers: int) -> None:
        self._order: list[list[ItemKey]] = []
        self._make = lambda: DataLoader(
            _Items(items),
            batch_sampler=self._order,
            num_workers=workers,
            collate_fn=lambda batch: batch,
            # In this process the upload does it, for what is not on the device already.
            pin_memory=config.loader.pin_memory and workers > 0 and torch.cuda.is_available(),
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,  # a user's data set need not pickle
            generator=torch.Generator(),  # the global one is the model's
        )
        self._loader: DataLoader[object] | None = None
        self._busy = False

    def read(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Raises OwnCodeError, and LoaderError if a loader process dies."""
        if not batches:
            return
        if self._busy or self._loader is None:  # a read that was left early may still have batches in progress
            self.close()
            self._loader = self._make()
        self._order[:] = [[(epoch.seed, epoch.number, int(index)) for index in rows] for rows in batches]
        self._busy = True
        found = iter(self._loader)
        while True:
            try:
                batch = next(found, None)
            except RuntimeError as error:
                # torch raises this class for many errors: only its words tell that a process has died.
                if "DataLoader worker" not in str(error):
                    raise
                raise LoaderError(str(error).splitlines()[0], killed="killed by signal" in str(error)) from None
            if batch is None:
                break
            if isinstance(batch, str):
                raise OwnCodeError(batch)  # ConfigErrors are those that all ranks meet
            yield batch
            del batch  # kept, it would hold a batch while the next one is read
        self._busy = False

    def close(self) -> None:
        """Drop the DataLoader, which ends its processes."""
        self._loader, self._busy = None, False


class _Items(Dataset[object]):
    def __init__(self, items: OwnSet) -> None:
        self._items = items

    def __getitems__(self, keys: Sequence[ItemKey]) -> Batch | str:
        """A whole batch, or the message of its error: an exception would come with torch's traceback."""
        try:
            return self._items.batch([self._items.item(*key) for key in keys])
        except (OwnCodeError, ConfigError) as error:
            return str(error)
