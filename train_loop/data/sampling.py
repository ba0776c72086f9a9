"""Which images make which batch: pure functions of seed, epoch and rank, without torch and without state.

Each random choice has its own generator, made from (seed, epoch, purpose). So a run that resumes, or that has another
number of workers, sees the same images in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bigbatch.train_loop.config import BatchSplit
from bigbatch.train_loop.config.last_step import last_micro_size

Indices = npt.NDArray[np.int64]

ORDER = 0
AUGMENTATION = 1
MIXING = 2
# Any number, but never change it: another one would mix held-out images with those that choose.
HOLDOUT_SEED = 27


def generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    """The generator for one purpose (``ORDER``, ``AUGMENTATION``, ``MIXING``) of one epoch."""
    return np.random.default_rng([seed, epoch, stream])


def train_order(size: int, seed: int, epoch: int, repeats: int = 1) -> Indices:
    """The shuffle of an epoch: its training images in their order, ``[size]``, a permutation.

    With repeated augmentation (Hoffer et al. 2020; Berman et al. 2019, §3) each image stands ``repeats`` times in a
    row in the permutation, and its first ``size`` entries are used, as in timm's ``RepeatAugSampler``. So the number of
    entries is the same, of ``ceil(size / repeats)`` different images. Copy c of image i is ``i + c·size``: the copies
    differ in their draws of augmentation.
    """
    order = generator(seed, epoch, ORDER).permutation(size)
    if repeats == 1:
        return order
    entry = np.arange(size)
    return order[entry // repeats] + entry % repeats * size


def micro_sizes(size: int, batch: BatchSplit, drop_last: bool = True) -> list[int]:
    """Images of each micro-batch, by step of an epoch."""
    last = 0 if drop_last else last_micro_size(size, batch)
    return [batch.micro_size] * (size // batch.global_size) + ([last] if last else [])


def train_micro_batches(
    size: int,
    seed: int,
    epoch: int,
    batch: BatchSplit,
    rank: int,
    start_step: int = 0,
    repeats: int = 1,
    drop_last: bool = True,
) -> Iterator[list[Indices]]:
    """A rank's micro-batches of an epoch: per optimizer step ``accumulation_steps`` × ``[micro_size]``.

    Step s takes entries ``[s·B, (s+1)·B)`` of ``train_order``; the rest at the end is dropped, or makes a smaller step
    (``last_micro_size``). A step's micro-batch j is accumulation step ``j // workers`` of rank ``j % workers``: one
    worker with two accumulation steps sees the same micro-batches as two workers with one.

    Copies of an image (``repeats``) lie side by side, hence in one step; its entries are dealt to the micro-batches
    in turn, so that BatchNorm sees different images where there are as many micro-batches as copies (timm deals
    them to the ranks).
    """
    order = train_order(size, seed, epoch, repeats)
    sizes = micro_sizes(size, batch, drop_last)
    for step in range(start_step, len(sizes)):
        begin, images = step * batch.global_size, batch.accumulation_steps * batch.workers * sizes[step]
        chosen = order[begin : begin + images]
        if repeats > 1:
            chosen = chosen.reshape(sizes[step], -1).T
        micro = chosen.reshape(batch.accumulation_steps, batch.workers, sizes[step])
        yield list(micro[:, rank])


def val_batches(size: int, batch_size: int, rank: int, workers: int) -> list[Indices]:
    """A rank's share of the validation set: each image is on one rank, once; shares differ by at most one image.

    The last batch may be shorter, and a rank may have one batch less than another, or none.
    """
    share = np.arange(rank, size, workers, dtype=np.int64)
    return [share[start : start + batch_size] for start in range(0, len(share), batch_size)]


def holdout_rows(labels: Indices, count: int) -> tuple[Indices, Indices]:
    """Rows of the validation images that choose among configurations, and of ``count`` that only report; each rising.

    The best of many configurations is chosen by its value, so a part of that value is luck with these images. Images
    that took no part in the choice do not have this luck (Cawley and Talbot 2010, §5).

    Stratified: each class gives its share to within one image. The rows depend on ``labels`` and ``count`` alone, so
    they are the same in all trials, with any seed, and on all ranks.

    Args:
        labels: of all validation images, ``[N]``.
        count: at least 1, at most N.
    """
    reports = stratified_rows(labels, count, HOLDOUT_SEED)
    return np.setdiff1d(np.arange(len(labels), dtype=np.int64), reports), reports


def stratified_rows(labels: Indices, count: int, seed: int) -> Indices:
    """``count`` rows, rising: each class gives its share to within one image."""
    by_class = np.lexsort((np.random.default_rng(seed).permutation(len(labels)), labels))
    # At equal distances in the order of the classes.
    return np.sort(by_class[(np.arange(count) * len(labels) + len(labels) // 2) // count])


def bn_batches(
    size: int, seed: int, epoch: int, micro_size: int, count_images: int, rank: int, workers: int
) -> list[Indices]:
    """A rank's training images for BatchNorm statistics, in micro-batches as in training.

    The first ``count_images`` of the epoch's order without repeats (or all, if fewer), cut into micro-batches that go
    to the ranks in turn. A smaller last one is dropped, because it has other statistics. If there is no whole
    micro-batch, one takes all images. A rank may have none.
    """
    chosen = train_order(size, seed, epoch)[:count_images]
    whole = max(len(chosen) // micro_size, 1)
    return [chosen[j * micro_size : (j + 1) * micro_size] for j in range(rank, whole, workers)]
