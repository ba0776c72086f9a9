"""Image folders: decoded with Pillow, cropped as for ImageNet."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading.loader import IndexedImages, LoadedSource, WriteImage
from bigbatch.train_loop.data.pixels import boxes
from bigbatch.train_loop.data.pixels.crops import MEAN, STD, central_crop, decode_rgb, random_crop
from bigbatch.train_loop.data.sets.scan import FolderScan, Listing
from bigbatch.train_loop.data.sets.subset import subset_rows


def open_folder(config: DataConfig, info: DataInfo, scan: FolderScan) -> LoadedSource:
    """The images that ``scan`` has listed."""
    train = scan.train if config.subset == 1 else scan.train.rows(subset_rows(scan.train.labels, config.subset))
    parts = [FolderImages(part, config) for part in (train, scan.val)]
    return LoadedSource(config, info, parts[0], parts[1], MEAN, STD)


class FolderImages(IndexedImages):
    """Images that are read from files when they are needed."""

    def __init__(self, listing: Listing, config: DataConfig = boxes.USUAL) -> None:
        self._listing, self._config = listing, config

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """The classes, int64 ``[len(indices)]``."""
        return self._listing.labels[indices]

    # Nothing is read before an image is written: decoded ones would take megabytes each.

    def open_plain(self, index: int) -> WriteImage:
        """A function that writes an image's central crop into ``[size, size, 3]`` bytes. It may raise ImageError."""
        part = self._config.val_crop
        return lambda out: _write(central_crop(decode_rgb(self._listing.path(index)), out.shape[0], part), out)

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """A function that writes a random crop of an image into such bytes. It may raise ImageError."""
        augment = self._config.augment
        return lambda out: _write(random_crop(decode_rgb(self._listing.path(index)), out.shape[0], draws, augment), out)


def _write(image: Image.Image, out: torch.Tensor) -> None:
    out.copy_(torch.from_numpy(np.array(image)))
