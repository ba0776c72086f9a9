"""Crops as for ImageNet, of images that Pillow decodes."""

from __future__ import annotations

import math
import random

from PIL import Image

from bigbatch.train_loop.data.pixels.depth import to_8_bits
from bigbatch.train_loop.errors import ImageError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, red, green and blue, of pixels 0 to 1."""

CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
RESIZE_BEFORE_CROP = 256 / 224
LONGEST_RATIO = 16


def decode(path: str) -> Image.Image:
    """The image as RGB, whatever it was (grey, CMYK, palette). Raises ImageError naming the file."""
    try:
        with Image.open(path) as image:
            return to_8_bits(image).convert("RGB")
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise ImageError(f"cannot read image {path}: {error}. Remove or replace the file.") from None


def random_crop(image: Image.Image, size: int, draws: random.Random) -> Image.Image:
    """A random part of the image, resized to ``size`` × ``size``.

    Area 8 to 100 % of the image, aspect ratio 3:4 to 4:3 (Szegedy et al. 2015, §6).
    """
    return image.crop(random_box(*image.size, draws)).resize((size, size), Image.Resampling.BILINEAR)


def random_box(width: int, height: int, draws: random.Random) -> tuple[int, int, int, int]:
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


def central_box(width: int, height: int, size: int) -> tuple[float, float, float, float]:
    """What of an image validation sees: left, upper, right, lower, in fractions of pixels.

    Resized with the pixels around it, it is ``central_crop`` of the whole image within a level of rounding.
    """
    w, h = min(width, LONGEST_RATIO * height), min(height, LONGEST_RATIO * width)
    short = round(size * RESIZE_BEFORE_CROP)
    scaled = (short, int(short * h / w)) if w <= h else (int(short * w / h), short)
    left, upper = round((scaled[0] - size) / 2) * w / scaled[0], round((scaled[1] - size) / 2) * h / scaled[1]
    x, y = (width - w) // 2, (height - h) // 2
    return x + left, y + upper, x + left + size * w / scaled[0], y + upper + size * h / scaled[1]
