"""Which training images a run sees: all except those that are held out for validation, or a part of them.

``data.val_part`` holds out images of each class where a data set has none to validate on. A part of the training images
serves searches that need not see them all.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data import sampling

Rows = npt.NDArray[np.int64]


def hold_out(names: Sequence[str | bytes], labels: npt.NDArray[np.int64], part: float) -> tuple[Rows, Rows]:
    """The rows that train and those that validate, each rising; a function of names, labels and part alone.

    It holds out evenly spaced images of a list sorted by class and hash of the name: each class gives its share to
    within one image, and keeps at least one to train on.

    Args:
        names: of the images, in the data set.
        labels: ``[N]``.
        part: above 0, below 1.

    Raises ConfigError where there is no image to spare.
    """
    digests = [hashlib.sha256(os.fsencode(name)).digest() for name in names]
    ranked = sorted(range(len(names)), key=lambda row: (labels[row], digests[row]))
    count = max(round(len(ranked) * part), 1)
    left = Counter(labels.tolist())
    held = np.zeros(len(ranked), dtype=bool)
    for number in range(count):
        row = ranked[(number * len(ranked) + len(ranked) // 2) // count]
        if left[label := int(labels[row])] > 1:
            left[label] -= 1
            held[row] = True
    if not held.any():
        raise ConfigError(
            f"--val-part holds out images of classes that have more than one; got {part:g} of {len(ranked)} images of "
            f"{len(left)} classes. Write a larger part, or add images."
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


# Any number, but never change it: with another one, trials of two searches would see different images.
SEED = 20


def subset_size(size: int, part: float) -> int:
    """Images that a part of the training set has; at least 1."""
    return max(round(size * part), 1)


def subset_rows(labels: npt.NDArray[np.int64], part: float) -> npt.NDArray[np.int64]:
    """Rows of a stratified part, rising: each class gives its share to within one image.

    The rows are the same in each run, so that trials are comparable: they have their own seed, not the run's. A smaller
    part is not always within a larger one.

    Args:
        labels: ``[N]``.
        part: above 0, at most 1.
    """
    return sampling.stratified_rows(labels, subset_size(len(labels), part), SEED)
