"""Image folders: decoded with Pillow, cropped as for ImageNet, in as many processes as asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from train_loop.config import DataConfig
from train_loop.data import DataInfo, folder_path, sampling
from train_loop.data.scan import Listing, scan_folder
from train_loop.data.source import Batch, DataSource, Epoch

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, red, green and blue, of pixels 0 to 1."""

CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
RESIZE_BEFORE_CROP = 256 / 224
LONGEST_RATIO = 16


class ImageError(RuntimeError):
    """An image that cannot be decoded; the message names the file."""


class FolderSource(DataSource):
    """Images that are read from files as they are needed."""

    def __init__(self, config: DataConfig, info: DataInfo) -> None:
        super().__init__(info)
        scan = scan_folder(info.path or folder_path(config.name))
        self._train, self._val = scan.train, scan.val
        self._config = config

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        return self._read(self._train, batches, epoch if self._config.augment else None)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        return self._read(self._val, batches, None)

    def _read(self, listing: Listing, batches: Sequence[sampling.Indices], epoch: Epoch | None) -> Iterator[Batch]:
        if not batches:
            return
        loader = DataLoader(
            _Batches(listing, batches, self.info.image_size, epoch),
            batch_size=None,  # an item is a batch already
            num_workers=min(self._config.loader_workers, len(batches)),
        )
        for item in loader:
            if isinstance(item, ImageError):
                raise item
            pixels, labels = item
            yield _normalise(pixels), labels


class _Batches(Dataset[Batch | ImageError]):
    """Item i is the i-th batch: uint8 ``[N, H, W, 3]``, a quarter of the bytes between the processes."""

    def __init__(
        self, listing: Listing, batches: Sequence[sampling.Indices], image_size: int, epoch: Epoch | None
    ) -> None:
        self._listing, self._batches, self._size, self._epoch = listing, batches, image_size, epoch

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Batch | ImageError:
        indices = self._batches[number]
        pixels = torch.empty((len(indices), self._size, self._size, 3), dtype=torch.uint8)
        try:
            for place, index in enumerate(indices):
                pixels[place] = torch.from_numpy(np.array(self._image(int(index))))
        except ImageError as error:
            return error  # raised in a loader process it would come out under a traceback of theirs
        return pixels, torch.from_numpy(self._listing.labels[indices])

    def _image(self, index: int) -> Image.Image:
        image = decode(self._listing.path(index))
        if self._epoch is None:
            return central_crop(image, self._size)
        # A word as seed is hashed (SHA-512), the same in every process.
        draws = random.Random(f"{self._epoch.seed} {self._epoch.number} {index}")
        return random_crop_flip(image, self._size, draws)


def _normalise(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N, H, W, 3]`` to float32 ``[N, 3, H, W]``, which then lies channels-last in memory."""
    mean, std = torch.tensor(MEAN) * 255, torch.tensor(STD) * 255
    return pixels.float().sub_(mean).div_(std).permute(0, 3, 1, 2)


def decode(path: str) -> Image.Image:
    """The image as RGB, whatever it was (grey, CMYK, palette). Raises ImageError naming the file."""
    try:
        with Image.open(path) as image:
            return to_8_bits(image).convert("RGB")
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise ImageError(f"cannot read image {path}: {error}. Remove or replace the file.") from None


def to_8_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey: Pillow's own conversion cuts off at 255, which leaves a white image.

    Raises ValueError for 32-bit and float pixels, whose range nobody knows.
    """
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.float64)
        if image.mode == "F" or pixels.max(initial=0) > 65535:
            raise ValueError(f"pixels of mode {image.mode!r} have no known range, convert them to 8 or 16 bits")
        # PNG and TIFF of 16 bits open as mode I too; what stays within 8 bits is taken as it is.
        scale = 257.0 if image.mode != "I" or pixels.max(initial=0) > 255 else 1.0
        return Image.fromarray(np.rint(pixels.clip(0) / scale).astype(np.uint8))
    return image


def random_crop_flip(image: Image.Image, size: int, draws: random.Random) -> Image.Image:
    """A random part of the image, resized to ``size`` × ``size``, mirrored half the time.

    Area 8 to 100 % of the image, aspect ratio 3:4 to 4:3 (Szegedy et al. 2015, §6).
    """
    cropped = image.crop(_random_box(*image.size, draws)).resize((size, size), Image.Resampling.BILINEAR)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws.random() < 0.5 else cropped


def _random_box(width: int, height: int, draws: random.Random) -> tuple[int, int, int, int]:
    """Left, upper, right, lower; the largest allowed central box where ten draws do not fit the image."""
    for _ in range(10):
        area = width * height * draws.uniform(*CROP_AREA)
        ratio = math.exp(draws.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = draws.randint(0, width - w), draws.randint(0, height - h)
            return left, upper, left + w, upper + h
    w = min(width, max(round(height * CROP_RATIO[1]), 1))
    h = min(height, max(round(width / CROP_RATIO[0]), 1))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def _without_far_ends(image: Image.Image) -> Image.Image:
    """The middle of a very long image: resizing all of it would cost gigabytes for what is cut off again."""
    width, height = image.size
    w, h = min(width, LONGEST_RATIO * height), min(height, LONGEST_RATIO * width)
    if (w, h) == (width, height):
        return image
    left, upper = (width - w) // 2, (height - h) // 2
    return image.crop((left, upper, left + w, upper + h))


def central_crop(image: Image.Image, size: int) -> Image.Image:
    """The shorter side to 256/224 of ``size``, then the central ``size`` × ``size``."""
    image = _without_far_ends(image)
    width, height = image.size
    short = round(size * RESIZE_BEFORE_CROP)
    scaled = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    resized = image.resize(scaled, Image.Resampling.BILINEAR)
    left, upper = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return resized.crop((left, upper, left + size, upper + size))
