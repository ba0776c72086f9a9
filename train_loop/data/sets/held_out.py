"""``data.val_part``: images of each class that are held out of training, where a data set has none to validate on."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bigbatch.train_loop.config import ConfigError

Rows = npt.NDArray[np.int64]


def hold_out(names: Sequence[str | bytes], labels: npt.NDArray[np.int64], part: float) -> tuple[Rows, Rows]:
    """The rows that train and those that validate, each rising; a function of names, labels and part alone.

    Evenly spaced images of a list sorted by class and hash of the name: each class gives its share to within one
    image, and keeps at least one to train on.

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
