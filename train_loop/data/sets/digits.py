"""Digits: the 1,797 scans of handwritten digits, 8×8, that scikit-learn ships (UCI optdigits, test part)."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.sets.subset import subset_rows
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch

MEAN, STD = 0.305, 0.376
"""Mean and standard deviation of the pixels of all scans, 0 to 1."""
VAL_SIZE = 360


@dataclass(frozen=True)
class AffineRange:
    """How far ``random_affine`` may go, both ways."""

    shift: float
    """Part of the image's side."""
    degrees: float
    scale: float
    """Part of the size: 0.1 is 0.9 to 1.1 times."""


AUGMENTATION = AffineRange(shift=0.0625, degrees=8.0, scale=0.08)
"""Shift up to 2 of 32 pixels, half a pixel of the scan. No flips: a mirrored digit is another sign."""


class DigitsSource(DataSource):
    """The scans enlarged to the image size, grey on three channels. All of it lies in memory."""

    def __init__(self, config: DataConfig, info: DataInfo) -> None:
        super().__init__(info, config.augment.copies)
        pixels, labels = load_scans()
        train, val = split_rows(labels)
        train = train[subset_rows(labels[train], config.subset)]
        self._config = config
        self._train = (torch.from_numpy(pixels[train]), torch.from_numpy(labels[train]))
        self._val = (torch.from_numpy(pixels[val]), torch.from_numpy(labels[val]))

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Augmented batches on the CPU: normalised floats ``[N, 3, size, size]``, and labels, int64 ``[N]``."""
        draws = sampling.generator(epoch.seed, epoch.number, sampling.AUGMENTATION)
        # One row for each image: its draws do not depend on which batch it is in.
        table = torch.from_numpy(draws.random((self._repeats * self.info.train_size, 4), dtype=np.float32))
        for indices in batches:
            rows = torch.from_numpy(indices % self.info.train_size)
            images = _enlarge(self._train[0][rows], self.info.image_size)
            if self._config.augment.enabled:
                images = random_affine(images, table[torch.from_numpy(indices)], AUGMENTATION)
            yield _normalise(images), self._train[1][rows]

    def val_labels(self) -> sampling.Indices:
        """The classes of all validation images, int64 ``[360]``."""
        return self._val[1].numpy()

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """Validation batches on the CPU: normalised floats ``[N, 3, size, size]``, and labels, int64 ``[N]``."""
        for indices in batches:
            rows = torch.from_numpy(indices)
            size = self._config.val_image_size or self.info.image_size
            yield _normalise(_enlarge(self._val[0][rows], size)), self._val[1][rows]


def _enlarge(scans: torch.Tensor, size: int) -> torch.Tensor:
    return F.interpolate(scans, size=(size, size), mode="bilinear", align_corners=False)


def random_affine(images: torch.Tensor, draws: torch.Tensor, bounds: AffineRange) -> torch.Tensor:
    """Shift, turn and scale each image by its own draws; pixels from outside are 0.

    Args:
        images: ``[N, C, H, W]``, square.
        draws: ``[N, 4]`` in 0 to 1, uniform: shift right, shift down, turn clockwise, enlarge. 0.5
            everywhere leaves the image as it is.

    Returns:
        ``[N, C, H, W]``, bilinear. An image's result does not depend on the others of the batch.
    """
    right, down, turn, grow = (2 * draws - 1).unbind(1)
    angle = turn * math.radians(bounds.degrees)
    # The grid says where an output pixel comes from: enlarging shows a smaller part.
    zoom = 1 / (1 + grow * bounds.scale)
    cos, sin = (zoom * angle.cos())[:, None, None], (zoom * angle.sin())[:, None, None]
    size = images.shape[-1]
    # Centres of the pixels, from -1 to 1 over the image. The grid has the source position of each output pixel.
    axis = (torch.arange(size, dtype=images.dtype) * 2 + 1) / size - 1
    # A shift by a part s of the side is 2s on this axis.
    x = axis[None, None, :] - (2 * bounds.shift * right)[:, None, None]
    y = axis[None, :, None] - (2 * bounds.shift * down)[:, None, None]
    grid = torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _normalise(images: torch.Tensor) -> torch.Tensor:
    return ((images - MEAN) / STD).expand(-1, 3, -1, -1).contiguous()


def load_scans() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Pixels 0 to 1, ``[1797, 1, 8, 8]``, and labels ``[1797]``.

    Reads scikit-learn's file without importing the package, which costs seconds in each process.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("data set digits needs scikit-learn; got none. Run: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    # The scans' pixels are 0 to 16.
    pixels = (table[:, :64] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return pixels, table[:, 64].astype(np.int64)


def split_rows(labels: npt.NDArray[np.int64]) -> tuple[sampling.Indices, sampling.Indices]:
    """Training and validation rows, stratified: each class gives its share to within one image.

    The rows are sorted by class, within a class by a hash of the row number, and validation takes
    evenly spaced ones of that list. No generator of any library is involved: the split never changes.
    """

    def hashed(row: int) -> bytes:
        return hashlib.sha256(f"digits {row}".encode()).digest()

    by_class = np.array(sorted(range(len(labels)), key=lambda row: (int(labels[row]), hashed(row))), dtype=np.int64)
    picked = (np.arange(VAL_SIZE) * len(labels) + len(labels) // 2) // VAL_SIZE
    val = np.sort(by_class[picked])
    return np.setdiff1d(np.arange(len(labels), dtype=np.int64), val), val
