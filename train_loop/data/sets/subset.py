"""A part of the training images, for searches that need not see them all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Any number, but the same for ever: with another one, trials of two searches would see other images.
SEED = 20


def subset_size(size: int, part: float) -> int:
    """Images that a part of the training set has; at least 1."""
    return max(round(size * part), 1)


def subset_rows(labels: npt.NDArray[np.int64], part: float) -> npt.NDArray[np.int64]:
    """Rows of a stratified part, rising: each class gives its share to within one image.

    The same rows in each run, so that trials compare: drawn from a seed of its own, whatever the run's.
    A smaller part is not always within a larger one.

    Args:
        labels: ``[N]``.
        part: above 0, at most 1.
    """
    count = subset_size(len(labels), part)
    draws = np.random.default_rng(SEED)
    by_class = np.lexsort((draws.permutation(len(labels)), labels))
    picked = (np.arange(count) * len(labels) + len(labels) // 2) // count
    return np.sort(by_class[picked])
