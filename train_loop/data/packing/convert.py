"""One image of a source as it is stored in a packed data set; what cannot be stored is refused with the reason."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from bigbatch.train_loop.data.pixels import jpeg
from bigbatch.train_loop.data.pixels.crops import to_8_bits, turn_of, turned


class RejectedImage(ValueError):
    """An image that cannot be converted. The message is the reason."""


@dataclass(frozen=True)
class PackProfile:
    """How images are stored."""

    name: str = "full"
    """``full``: original resolution; ``fast``: resized to ``short_side``."""
    short_side: int = 256
    """fast: pixels of the shorter side; smaller images keep their size."""
    quality: int = 90
    """Of images that must be encoded anew: all in ``fast``, in ``full`` those that were no plain JPEG."""
    jpegtran: str | None = None
    """Program for ``full`` without loss; None: JPEGs are encoded again with their own tables."""


@dataclass(frozen=True)
class StoredImage:
    """A record: an image file's bytes, and the facts about it."""

    data: bytes
    width: int
    height: int
    pixel_sums: npt.NDArray[np.float64]
    """``[3, 2]``: of red, green and blue, mean and mean square over the image, of values 0 to 1."""


def convert(data: bytes, profile: PackProfile) -> StoredImage:
    """Raises RejectedImage with the reason in a few words."""
    if not data:
        raise RejectedImage("zero bytes")
    try:
        with warnings.catch_warnings():
            # A small file can unpack to gigabytes: Pillow only warns of it, which would end this process for want of
            # memory.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data))
            image.load()
            stored = _store(data, image, profile)
        pixels = _statistics(to_8_bits(image).convert("RGB"))
    except UnidentifiedImageError:
        raise RejectedImage("no image that Pillow knows") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and others
        raise RejectedImage(" ".join(str(error).split()) or type(error).__name__) from None
    # Opened once more: what is stored may be turned or smaller than what came in, and the index needs its size.
    with Image.open(BytesIO(stored)) as final:
        width, height = final.size
    with contextlib.suppress(jpeg.JpegError):  # one without marks is decoded whole
        stored = jpeg.stamp(stored)
    return StoredImage(stored, width, height, pixels)


def _store(data: bytes, image: Image.Image, profile: PackProfile) -> bytes:
    turn = turn_of(image)
    plain = image.mode in ("RGB", "L") and turn is None
    small = image.width * image.height < jpeg.MIN_PIXELS
    if plain and small and image.format in ("JPEG", "PNG"):
        return data
    if profile.name == "full" and plain and image.format == "JPEG":
        if profile.jpegtran:
            try:
                return jpeg.with_restarts(data, profile.jpegtran)
            except jpeg.JpegError:
                pass  # damaged in a way that Pillow reads over
        return jpeg.encode(image, quality=None)
    upright = turned(_as_rgb(image), turn)
    if profile.name == "fast":
        upright = _shrink(upright, profile.short_side)
    elif small:
        return _png(upright)
    return jpeg.encode(upright, profile.quality)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Grey stays grey; 16 bits become 8; transparency is dropped, as in an image folder."""
    image = to_8_bits(image)
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _shrink(image: Image.Image, short_side: int) -> Image.Image:
    scale = short_side / min(image.size)
    if scale >= 1:
        return image
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _statistics(image: Image.Image) -> npt.NDArray[np.float64]:
    """From all pixels of a small image, or every 16th of a larger one: that suffices for a data set's mean."""
    step = 4 if min(image.size) > 64 else 1
    pixels = np.asarray(image)[::step, ::step].reshape(-1, 3) / 255
    return np.stack([pixels.mean(0), np.square(pixels).mean(0)], axis=1)
