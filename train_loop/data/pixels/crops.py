"""Crops as for ImageNet, of images that Pillow decodes."""

from __future__ import annotations

import random

from PIL import Image

from bigbatch.train_loop.config.data_sections import AugmentConfig
from bigbatch.train_loop.data.pixels import boxes
from bigbatch.train_loop.data.pixels.depth import to_8_bits
from bigbatch.train_loop.data.pixels.orientation import turn_of, turned
from bigbatch.train_loop.errors import ImageError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, red, green and blue, of pixels 0 to 1."""


def decode_rgb(path: str) -> Image.Image:
    """The image as a viewer shows it, as RGB, from any mode (grey, CMYK, palette).

    Raises ImageError with the file's name.
    """
    try:
        with Image.open(path) as image:
            # First: the image that a conversion makes may have no EXIF.
            turn = turn_of(image)
            return turned(to_8_bits(image).convert("RGB"), turn)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise ImageError(f"cannot read image {path!r}: {error}. Remove or replace the file.") from None


def random_crop(
    image: Image.Image, size: int, draws: random.Random, augment: AugmentConfig = boxes.USUAL.augment
) -> Image.Image:
    """A random part of the image (``boxes.random_box``), resized to ``size`` × ``size``."""
    return image.crop(boxes.random_box(*image.size, draws, augment)).resize((size, size), Image.Resampling.BILINEAR)


def central_crop(image: Image.Image, size: int, part: float = boxes.USUAL.val_crop) -> Image.Image:
    """The shorter side to ``size / part``, then the central ``size`` × ``size``."""
    middle = boxes.without_far_ends(*image.size)
    if middle != (0, 0, *image.size):
        image = image.crop(middle)
    scaled = boxes.size_before_crop(*image.size, size, part)
    return image.resize(scaled, Image.Resampling.BILINEAR).crop(boxes.centre(scaled, size))
