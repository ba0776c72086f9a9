"""Images that compress as photographs do."""

from __future__ import annotations

import numpy as np
from PIL import Image


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with edges: noise of several sizes, enlarged and added."""
    draws = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells in (3, 11, 40):
        small = Image.fromarray(draws.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) / 3
    return Image.fromarray(total.astype(np.uint8))
