"""What the tests of loaders read."""

from __future__ import annotations

import numpy as np

SIZE = 16


def batches_of(*sizes: int) -> list[np.ndarray]:
    draws = np.random.default_rng(1)
    return [draws.integers(0, 40, size) for size in sizes]
