"""Pixels of unusual depth. No torch."""

from __future__ import annotations

import numpy as np
from PIL import Image


def to_8_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey: Pillow's own conversion cuts off at 255, which leaves a white image.

    Raises ValueError for 32-bit and float pixels, whose range nobody knows.
    """
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.float64)
        if image.mode == "F" or pixels.max(initial=0) > 65535:
            raise ValueError(f"pixels of mode {image.mode!r} have no known range, convert them to 8 or 16 bits")
        # PNG and TIFF of 16 bits open as mode I too; what stays within 8 bits is taken as it is.
        # 65535 / 255: white stays white.
        scale = 257.0 if image.mode != "I" or pixels.max(initial=0) > 255 else 1.0
        return Image.fromarray(np.rint(pixels.clip(0) / scale).astype(np.uint8))
    return image
