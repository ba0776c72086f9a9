"""Crops as for ImageNet, of images that Pillow decodes: as a viewer shows them, in 8 bits. No torch.

Cameras note in EXIF how they were held, and store the pixels as the sensor gave them.
"""

from __future__ import annotations

import os
import random
import warnings
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from bigbatch.train_loop.config.data_sections import AugmentConfig
from bigbatch.train_loop.data.pixels import boxes
from bigbatch.train_loop.errors import ImageError

# Pillow warns of images of more than ``MAX_IMAGE_PIXELS`` when they are opened and when they are cropped.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def opened(file: str | os.PathLike[str] | IO[bytes]) -> Image.Image:
    """``Image.open`` for all images of users, so that ``bigbatch pack`` accepts the same images as training.

    Raises ValueError for more than twice Pillow's ``MAX_IMAGE_PIXELS``, half a gigabyte as RGB: a small file can unpack
    to so many that this process runs out of memory. Otherwise it raises what Pillow raises.
    """
    try:
        return Image.open(file)
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise ValueError(f"it has more than {most:,} pixels, make it smaller") from None


MEND = "Replace the file and repeat the command. Or begin anew on what `bigbatch pack` makes: it omits damaged images"
"""What to do about an image that a run cannot read. Without the file the data differ, and the run cannot resume."""


def why_unreadable(error: Exception) -> str:
    """The reason of ``opened`` in words, without the file's name, which the caller adds."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def to_8_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey: Pillow's own conversion cuts off at 255, which leaves a white image.

    Raises ValueError for 32-bit and float pixels, whose range nobody knows.
    """
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.float64)
        if image.mode == "F" or pixels.max(initial=0) > 65535:
            raise ValueError(f"pixels of mode {image.mode!r} have no known range, convert them to 8 or 16 bits")
        # PNG and TIFF of 16 bits open as mode I, too; pixels within 8 bits are taken unchanged.
        # 65535 / 255: white stays white.
        scale = 257.0 if image.mode != "I" or pixels.max(initial=0) > 255 else 1.0
        return Image.fromarray(np.rint(pixels.clip(0) / scale).astype(np.uint8))
    return image


ORIENTATION = 0x0112
"""The EXIF tag (Exif 3.0, §4.6.5.1.6)."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The turn from stored pixels to those that a viewer shows. For 1, and any other value, both are the same."""


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """The turn that makes the pixels those that a viewer shows. None: they are already.

    EXIF that cannot be read turns nothing, as in viewers. Raises what Pillow raises for pixels that cannot be read.
    """
    image.load()  # a PNG may have EXIF after its pixels; Pillow turns a TIFF while it reads it, and drops the tag
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # Pillow raises SyntaxError, struct.error, KeyError and others
        return None


def turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    """The image as ``turn_of`` says."""
    if turn is None:
        return image
    found = image.transpose(turn)
    found.info.pop("exif", None)  # it would be turned again wherever it is written to
    return found


MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, red, green and blue, of pixels 0 to 1."""


def decode_rgb(path: str) -> Image.Image:
    """The image as a viewer shows it, as RGB, from any mode (grey, CMYK, palette).

    Raises ImageError with the file's name.
    """
    try:
        with opened(path) as image:
            # First: the image that a conversion makes may have no EXIF.
            turn = turn_of(image)
            return turned(to_8_bits(image).convert("RGB"), turn)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise ImageError(f"cannot read image {path!r}: {why_unreadable(error)}. {MEND}.") from None


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
