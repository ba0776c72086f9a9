"""Data sets of a user's own: what the function that ``data.name=FILE.py:FUNCTION`` names returns, checked."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.config.own_names import absolute, code_fingerprint
from bigbatch.train_loop.config.rules import Options
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.plugins.nested import Nested, map_tensors, tensors_of
from bigbatch.train_loop.plugins.registry import loaded, users_code

KEY = "data.name"
LOOK_AT = 8
"""Items that are collated before a run starts."""
PARTS = ("training", "validation")
WHOLE = "a whole number"
"""The kind of a target that is a class."""

Item = tuple[Nested, Nested]
"""Inputs and target."""
Collate = Callable[[list[Item]], object]


@dataclass(frozen=True)
class OwnSet:
    """The training or the validation set."""

    word: str
    """Of ``data.name``, with an absolute path."""
    part: str
    items: Dataset[object]
    size: int
    collate: Collate | None
    """None: ``default_batch``."""
    num_classes: int

    def item(self, seed: int, epoch: int, index: int) -> Item:
        """The item, the same for the same arguments whoever reads it.

        Raises OwnCodeError for what the data set raises, and ConfigError for what is no pair.
        """
        with seeded_draws(self.part, seed, epoch, index), users_code(KEY, self.word):
            found = self.items[index]
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            what = f"{len(found)} values" if isinstance(found, (tuple, list)) else f"a {type(found).__name__}"
            raise ConfigError(
                f"{KEY}={self.word} must give items that are pairs (inputs, target); got {what} as {self.part} item "
                f"{index}. Write `return inputs, target` in __getitem__."
            )
        return found[0], found[1]

    def batch(self, items: Sequence[tuple[int, Item]]) -> Item:
        """Items, each with its index, as inputs and targets.

        Raises OwnCodeError for what ``collate_fn`` raises, and ConfigError for items that do not collate.
        """
        self._check_targets(items)
        if self.collate is None:
            return self._default_batch(items)
        with users_code(KEY, self.word):
            found = self.collate([item for _, item in items])
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ConfigError(
                f"{KEY}={self.word} must have a collate_fn that returns a pair (inputs, targets); got a "
                f"{type(found).__name__}. Return a pair of tensors, or of tuples or dicts of tensors."
            )
        first = next(tensors_of(found[1]), None)
        if first is None or first.ndim == 0 or len(first) != len(items):
            got = "no tensor" if first is None else f"one of shape {tuple(first.shape)}"
            raise ConfigError(
                f"{KEY}={self.word} must have a collate_fn whose first target tensor has an entry for each item; got "
                f"{got} for {len(items)} items. Put such a tensor first, e.g. the number of boxes of each image."
            )
        return found[0], found[1]

    def _default_batch(self, items: Sequence[tuple[int, Item]]) -> Item:
        try:
            return _default_batch([item for _, item in items])
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise self._does_not_collate(items, error) from None

    def _does_not_collate(self, items: Sequence[tuple[int, Item]], error: Exception) -> ConfigError:
        """The error that names two items that do not go together."""
        (first, one), other = items[0], items[0][0]
        for index, item in items[1:]:
            try:
                _default_batch([one, item])
            except (RuntimeError, TypeError, ValueError, KeyError) as found:
                other, error = index, found
                break
        reason = str(error).splitlines()[0].rstrip(". ")
        which = f"{self.part} items {first} and {other}" if other != first else f"{self.part} item {first}"
        return ConfigError(
            f"{KEY}={self.word} must give items that make a batch; got {which}: {reason}. "
            "Return tensors of one shape, or return an object with a collate_fn."
        )

    def _check_targets(self, items: Sequence[tuple[int, Item]]) -> None:
        """Raise ConfigError for targets of different types, some of which torch would change without a word, and for a
        class that the set does not have, of which a GPU would say no more than that the device failed."""
        first, (_, target) = items[0]
        expected = _kind(target)
        for index, (_, other) in items:
            if _kind(other) != expected:
                raise ConfigError(
                    f"{KEY}={self.word} must give targets of one type; got {expected} as the target of {self.part} "
                    f"item {first} and {_kind(other)} of item {index}. Return one type."
                )
            on_device = isinstance(other, torch.Tensor) and other.device.type != "cpu"
            if expected == WHOLE and not on_device and 0 < self.num_classes <= (number := int(cast("int", other))):
                raise ConfigError(
                    f"{KEY}={self.word} must give classes below its num_classes, {self.num_classes}; got {number} as "
                    f"the target of {self.part} item {index}. Count classes from 0, or correct num_classes."
                )


@dataclass(frozen=True)
class OwnSets:
    """Both sets, and what the user says of their classes."""

    train: OwnSet
    val: OwnSet
    num_classes: int
    """0: not known. Both sets have it too."""
    class_names: tuple[str, ...]


def own_sets(config: DataConfig) -> OwnSets:
    """The sets of ``data.name=FILE.py:FUNCTION``; the function is called once in a process for the same options.

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


_latest: dict[tuple[str, Options, str], OwnSets] = {}
"""The sets that were made last, by their function, its options and its code."""


def _made(word: str, options: Options) -> OwnSets:
    function = loaded(KEY, word, (), options)
    with seeded_draws("data set"), users_code(KEY, word):
        made = function(**options)
    parts = _parts(word, made)
    names = _class_names(made) or _class_names(parts[0])
    sizes = [_size(word, part, items) for part, items in zip(PARTS, parts, strict=True)]
    classes, collate = _num_classes(word, made, parts[0], names), _collate_fn(word, getattr(made, "collate_fn", None))
    train, val = (
        OwnSet(word, part, cast("Dataset[object]", items), size, collate, classes)
        for part, size, items in zip(PARTS, sizes, parts, strict=True)
    )
    return OwnSets(train, val, classes, names)


def _parts(word: str, made: object) -> tuple[object, object]:
    """The two data sets, not checked yet."""
    if isinstance(made, (tuple, list)) and len(made) == 2:
        return made[0], made[1]
    train = getattr(made, "train", getattr(made, "train_dataset", None))
    val = getattr(made, "val", getattr(made, "val_dataset", None))
    if train is None and val is None:
        raise ConfigError(
            f"{KEY}={word} must return a pair (train, val) of data sets, or an object with .train and .val; got a "
            f"{type(made).__name__}. Write `return train, val`."
        )
    return train, val


def _collate_fn(word: str, found: object) -> Collate | None:
    if found is not None and not callable(found):
        raise ConfigError(
            f"{KEY}={word}: collate_fn must be a function of a list of items; got a {type(found).__name__}. Correct it."
        )
    return cast("Collate | None", found)


def _size(word: str, part: str, items: object) -> int:
    kind = "train" if part == PARTS[0] else "val"
    if items is None:
        raise ConfigError(
            f"{KEY}={word} must return a data set to {kind}{'idate' * (kind == 'val')} on; got none. "
            "Write `return train, val`; torch.utils.data.random_split divides one set."
        )
    map_style = hasattr(items, "__getitem__") and hasattr(items, "__len__")
    # All three have __len__ and __getitem__, but not by number.
    if not map_style or isinstance(items, (IterableDataset, dict, str)):
        raise ConfigError(
            f"{KEY}={word} must return map-style data sets, with __getitem__ and __len__; got a "
            f"{type(items).__name__} as {kind}. Return a torch.utils.data.Dataset, e.g. a TensorDataset."
        )
    with users_code(KEY, word):
        size = len(items)  # type: ignore[arg-type]
    if size == 0:
        raise ConfigError(f"{KEY}={word} must return data sets with items; got {kind} of length 0. Check its files.")
    return size


def _class_names(source: object) -> tuple[str, ...]:
    """torchvision's data sets have ``classes``."""
    names = getattr(source, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else ()


def _num_classes(word: str, made: object, train: object, names: tuple[str, ...]) -> int:
    count = getattr(made, "num_classes", getattr(train, "num_classes", None))
    if count is not None:
        # True is an int to Python.
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise ConfigError(f"{KEY}={word}: num_classes must be a whole number from 1 on; got {count!r}. Correct it.")
        return int(count)
    labels = known_labels(train, None)
    return len(names) or (int(labels.max()) + 1 if labels is not None else 0)


def known_labels(items: object, size: int | None) -> sampling.Indices | None:
    """The classes of all items, int64 ``[N]``, where the data set names them as torchvision's do: ``targets``, or
    ``labels``; None where it does not, or they are no classes."""
    found = getattr(items, "targets", getattr(items, "labels", None))
    if found is None or callable(found):
        return None
    try:
        labels = np.asarray(found)
    except (ValueError, TypeError, RuntimeError):
        return None
    # A set that wraps another may pass on the labels of all: their number tells.
    ok = labels.ndim == 1 and len(labels) and labels.dtype.kind in "iu" and size in (None, len(labels))
    return labels.astype(np.int64) if ok else None


def describe_own(config: DataConfig, open_some: bool) -> DataInfo:
    """The facts of a data set of the user's own, from its lengths and its first item.

    Args:
        open_some: also make a batch of its first items, of training and of validation.

    Raises ConfigError and OwnCodeError as ``own_sets``, and for items that make no batch.
    """
    sets = own_sets(config)
    for part in (sets.train, sets.val):
        if open_some:
            indices = range(min(part.size, LOOK_AT))
            part.batch([(index, part.item(0, 0, index)) for index in indices])
    inputs, target = sets.train.item(0, 0, 0)
    _check_same_kinds(sets, target)
    shape = tuple(inputs.shape) if isinstance(inputs, (torch.Tensor, np.ndarray)) else ()
    is_image = len(shape) == 3 and shape[1] == shape[2]
    size = int(shape[1]) if is_image else 0
    _refuse_image_keys(config, size)
    return DataInfo(
        name=sets.train.word.rpartition("/")[2],
        path=sets.train.word,
        train_size=sets.train.size,
        val_size=sets.val.size,
        num_classes=sets.num_classes,
        image_size=size,
        channels=int(shape[0]) if is_image else 0,
        class_names=sets.class_names,
        stem="small" if size <= SMALL_IMAGE_SIZE else "imagenet",
        input_shape=shape,
        are_classes=_kind(target) == WHOLE,
    )


def _check_same_kinds(sets: OwnSets, target: Nested) -> None:
    other = _kind(sets.val.item(0, 0, 0)[1])
    if other != _kind(target):
        raise ConfigError(
            f"{KEY}={sets.val.word} must give targets of one type; got {_kind(target)} in training and {other} in "
            "validation. Return one type."
        )


def _refuse_image_keys(config: DataConfig, image_size: int) -> None:
    """Raise ConfigError for a key that changes images: items of a user's own are as its code makes them."""
    plain = DataConfig()
    kept = {"name", "options", "subset", "holdout", "drop_last"}
    own_size = {"image_size": image_size, "val_image_size": image_size}
    for section, given, default in (
        ("data.", config, plain),
        ("data.augment.", config.augment, plain.augment),
        ("data.mix.", config.mix, plain.mix),
        ("data.loader.", config.loader, plain.loader),
    ):
        for name in vars(default):
            value, usual = getattr(given, name), getattr(default, name)
            if name in kept and section == "data." or name in ("loader", "augment", "mix"):
                continue
            if section == "data.loader." and name != "name":
                continue
            # The size that the items have anyway changes nothing.
            if value not in (usual, own_size.get(name, usual)):
                raise ConfigError(
                    f"{section}{name} changes images, and a data set of one's own makes its items itself; got "
                    f"{value!r} with {KEY}={config.name}. Leave it out, or give the function an option "
                    "(--set data.options.NAME=VALUE)."
                )


def _kind(value: Nested) -> str:
    """A value's type as it matters in a batch: of numbers and tensors whether they are whole, and their dimensions."""
    if isinstance(value, torch.Tensor):
        if value.ndim == 0:
            return "a number" if value.is_floating_point() else WHOLE
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {value.dtype}"
    if isinstance(value, (bool, int, np.integer, np.bool_)) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "iub"
    ):
        return WHOLE
    if isinstance(value, (float, np.floating, np.ndarray)):
        return "a number"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_kind(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_kind, value)) + ")"
    return f"a {type(value).__name__}"


WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""NumPy's dtypes of labels that torch stores, and compares with nothing."""


@torch.no_grad()
def _default_batch(items: Sequence[Item]) -> Item:
    """torch's default collation, with Python's and NumPy's double precision as float32, which models compute in, and
    without the gradients of items that a network has made: loader processes could not pass them on."""
    inputs, targets = (default_collate([item[place] for item in items]) for place in (0, 1))
    if next(tensors_of(targets), None) is None:
        raise TypeError("targets without a number")
    return _single(inputs), map_tensors(lambda one: one.long() if one.dtype in WIDE else one, _single(targets))


def _single(batch: Nested) -> Nested:
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor, batch)


@contextmanager
def seeded_draws(*position: object) -> Iterator[None]:
    """Within the block the three global generators begin as a function of ``position`` alone; after it they go on as
    if the block had not been: in the training process they are the model's.

    Of torch it is the CPU's generator. Generators that the user's code makes by itself are its own matter.
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
