"""A small image folder, and batches compared: for the tests of what reads images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.source import Batch, DataSource
from bigbatch.train_loop.plugins.nested import Nested, tensors_of

CLASSES = ("ant", "bee", "cat")


def write_noise_images(root: Path) -> Path:
    """20 + 7 noise pictures of 3 classes, of several sizes, formats and colour modes."""
    draws = np.random.default_rng(0)
    for part, counts in (("train", (9, 5, 6)), ("val", (4, 2, 1))):
        for name, count in zip(CLASSES, counts, strict=True):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (40 + 7 * number, 60, 3), dtype=np.uint8)
                mode = ("RGB", "L", "CMYK")[number % 3]
                suffix = "JPEG" if number % 2 or mode == "CMYK" else "png"
                Image.fromarray(pixels).convert(mode).save(root / part / name / f"{number}.{suffix}")
    return root


def folder_source(root: Path, **changes: object) -> DataSource:
    return open_data(DataConfig(name=str(root), image_size=16, **changes))  # type: ignore[arg-type]


def flat(steps: Iterable[list[Batch]]) -> list[Batch]:
    return [batch for step in steps for batch in step]


def same(one: Nested, other: Nested) -> bool:
    """Tensor for tensor, in batches or lists of them."""
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
