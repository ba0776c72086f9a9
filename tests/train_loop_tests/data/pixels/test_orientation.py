"""Images are trained on as a viewer shows them, whatever holds them and whatever reads them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from bigbatch.train_loop.data.packing.shards import PackProfile, convert
from bigbatch.train_loop.data.pixels.crops import decode_rgb

Pixels = npt.NDArray[np.uint8]
SHOWN: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: lambda stored: np.rot90(stored),
}
"""What a viewer shows, from where the stored row 0 and column 0 are (Exif 3.0, table 6): 6 has them right and above."""
FORMATS: dict[str, dict[str, Any]] = {
    "jpg": {"quality": 95, "subsampling": 0}, "png": {}, "webp": {"lossless": True}, "tif": {"compression": "tiff_lzw"},
    "tiff": {},
}  # fmt: skip


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def quarters(side: int = 80) -> Image.Image:
    """Each orientation shows other colours in the corners, and another shape."""
    pixels = np.zeros((side, side * 2, 3), np.uint8)
    colours = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (240, 240, 240)]
    for number, colour in enumerate(colours):
        row, column = divmod(number, 2)
        pixels[row * side // 2 : (row + 1) * side // 2, column * side : (column + 1) * side] = colour
    return Image.fromarray(pixels)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_orientation_is_read_and_packed_as_it_is_shown(tmp_path: Path, suffix: str) -> None:
    stored = quarters()
    for orientation, shown in SHOWN.items():
        path = tmp_path / f"{orientation}.{suffix}"
        stored.save(path, exif=exif(orientation), **FORMATS[suffix])
        expected = shown(np.asarray(stored)).astype(int)
        found = {"folder": np.asarray(decode_rgb(str(path)))}
        for profile in (PackProfile(), PackProfile("fast", short_side=80)):
            packed = convert(path.read_bytes(), profile)
            assert packed.data and (packed.height, packed.width) == expected.shape[:2], (orientation, profile.name)
            with Image.open(io.BytesIO(packed.data)) as image:
                assert image.getexif().get(0x0112, 1) == 1, "another viewer would turn it again"
                found[profile.name] = np.asarray(image.convert("RGB"))
        for reader, pixels in found.items():
            assert pixels.shape == expected.shape, (orientation, reader)
            assert np.abs(pixels - expected).mean() < 4, (orientation, reader)  # of 255: what JPEG changes
