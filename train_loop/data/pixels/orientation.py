"""How an image is shown: cameras note in EXIF how they were held, and store the pixels as the sensor gave them."""

from __future__ import annotations

from PIL import Image

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
"""What makes stored pixels those that a viewer shows. 1, and any other value, are shown as they are stored."""


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """How the pixels must be turned so that they are those that a viewer shows. None: they are already.

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
