"""Which part of an image is seen: boxes of crops, as numbers. No torch.

A box is left, upper, right, lower; the last two are exclusive. ``jpeg.cut`` finds the intervals of a stored JPEG.
"""

from __future__ import annotations

import math
import random

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.config.data_sections import AugmentConfig

Box = tuple[int, int, int, int]
"""In pixels."""
FractionBox = tuple[float, float, float, float]
"""In fractions of pixels."""
Size = tuple[int, int]
"""Width, height; pixels."""

USUAL = DataConfig()
"""How images are cropped by default."""
LONGEST_RATIO = 16
"""If the longer side is more than this many times the shorter one, validation ignores the ends of the image."""


def random_box(width: int, height: int, draws: random.Random, augment: AugmentConfig = USUAL.augment) -> Box:
    """A random part (Szegedy et al. 2015, §6); the largest allowed central box if ten draws do not fit the image.

    ``augment``: least area and largest ratio.
    """
    least, most = augment.min_crop_area, augment.max_crop_ratio
    for _ in range(10):
        area = width * height * draws.uniform(least, 1.0)
        # Uniform on the logarithm: otherwise wide crops would be likelier than tall ones.
        ratio = math.exp(draws.uniform(-math.log(most), math.log(most)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = draws.randint(0, width - w), draws.randint(0, height - h)
            return left, upper, left + w, upper + h
    w = min(width, max(round(height * most), 1))
    h = min(height, max(round(width * most), 1))
    return _middle(width, height, w, h)


def without_far_ends(width: int, height: int) -> Box:
    """The middle of a very long image. Resizing all of it would take gigabytes, and most would be cut off."""
    return _middle(width, height, min(width, LONGEST_RATIO * height), min(height, LONGEST_RATIO * width))


def _middle(width: int, height: int, w: int, h: int) -> Box:
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def size_before_crop(width: int, height: int, size: int, part: float = USUAL.val_crop) -> Size:
    """The size to which validation resizes an image before it cuts ``size`` × ``size`` out of its centre.

    ``part``: the crop's side, as a part of the image's shorter side.
    """
    short = round(size / part)
    # Cut off, not rounded, as in torchvision's Resize: so these are the pixels on which its recipes validate.
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def centre(scaled: Size, size: int) -> Box:
    """The central ``size`` × ``size`` of a resized image."""
    left, upper = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return left, upper, left + size, upper + size


def central_box(width: int, height: int, size: int, part: float = USUAL.val_crop) -> FractionBox:
    """The part of an image that validation sees at ``size`` × ``size``, in the image's own pixels.

    ``part``: of the shorter side.
    """
    x, y, right, lower = without_far_ends(width, height)
    w, h = right - x, lower - y
    scaled = size_before_crop(w, h, size, part)
    left, upper = centre(scaled, size)[:2]
    left_there, upper_there = left * w / scaled[0], upper * h / scaled[1]
    return (
        x + left_there,
        y + upper_there,
        x + left_there + size * w / scaled[0],
        y + upper_there + size * h / scaled[1],
    )


def with_surroundings(box: FractionBox, size: int, width: int, height: int) -> Box:
    """The pixels that contribute when the part of an image under ``box`` is resized to ``size`` × ``size``."""
    scale = max(box[2] - box[0], box[3] - box[1]) / size
    reach = math.ceil(max(scale, 1.0)) + 1  # the filter's support
    left, upper = max(math.floor(box[0]) - reach, 0), max(math.floor(box[1]) - reach, 0)
    return left, upper, min(math.ceil(box[2]) + reach, width), min(math.ceil(box[3]) + reach, height)


def moved(box: FractionBox, right: float, down: float) -> FractionBox:
    """The box in coordinates whose origin lies so far to the left and above."""
    return box[0] + right, box[1] + down, box[2] + right, box[3] + down


def overlap(size: int, by: int) -> tuple[slice, slice]:
    """For an image shifted by ``by`` pixels along one side: its visible place, and its visible part."""
    return slice(max(by, 0), size + min(by, 0)), slice(max(-by, 0), size - max(by, 0))
