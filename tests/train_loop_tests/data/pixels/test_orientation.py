"""Images are trained on as a viewer shows them, whatever holds them and whatever reads them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.packing.shards import PackProfile, convert
from bigbatch.train_loop.data.pixels.crops import decode_rgb
from bigbatch.train_loop.data.source import Epoch
from helpers.packed_sets import pack_here, photograph

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


def turned_photographs(root: Path) -> Path:
    """Two classes in which every picture was taken with the camera held in another way."""
    suffixes = list(FORMATS)
    for part, count in (("train", 8), ("val", 8)):
        for label, name in enumerate(("ant", "bee")):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                suffix = suffixes[number % len(suffixes)]
                image = photograph(200 + 8 * number, 150, 100 * label + number + 50 * (part == "val"))
                image.save(root / part / name / f"{number}.{suffix}", exif=exif(1 + number % 8), **FORMATS[suffix])
    return root


def test_all_ways_to_read_a_set_show_the_same_images(tmp_path: Path) -> None:
    """Training and validation, from the folder and from packed sets, against an upright folder."""
    turned = turned_photographs(tmp_path / "turned")
    upright = tmp_path / "upright"
    for path in turned.rglob("*.*"):
        with Image.open(path) as image:
            image.load()
            number = 1 if path.suffix in (".tif", ".tiff") else image.getexif()[0x0112]  # Pillow turned those itself
            target = (upright / path.relative_to(turned)).with_suffix(".png")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(SHOWN[number](np.asarray(image.convert("RGB"))))).save(target)
    full, fast = pack_here(turned, tmp_path / "full"), pack_here(turned, tmp_path / "fast", name="fast", short_side=256)
    for part in ("train", "val"):
        wanted = _images(upright, part)
        for folder, tolerance in ((turned, 1e-6), (full, 0.1), (fast, 0.15)):
            found = _images(folder, part)
            assert found.shape == wanted.shape and np.abs(found - wanted).mean() < tolerance, (folder, part)


def _images(folder: Path, part: str) -> npt.NDArray[np.float32]:
    source = open_data(DataConfig(str(folder), image_size=32, loader=LoaderConfig(workers=0)))
    order = [np.arange(16)]
    batches = source.read_train(order, Epoch(0, 0)) if part == "train" else source.read_val(order)
    images = source.finish(next(iter(batches))[0])
    assert isinstance(images, torch.Tensor)
    return images.contiguous().numpy()
