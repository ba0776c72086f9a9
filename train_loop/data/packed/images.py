"""Packed data sets (``bigbatch pack``): records read by their place in a shard, crops decoded, bytes to the device.

Only the part of an image file under the crop is decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.data.loading.loader import IndexedImages, LoadedSource, WriteImage
from bigbatch.train_loop.data.packed.schema import PackedFiles
from bigbatch.train_loop.data.pixels import boxes, crops, jpeg
from bigbatch.train_loop.data.sets.subset import subset_rows
from bigbatch.train_loop.errors import ImageError

T = TypeVar("T")
JPEG_BEGINS = b"\xff\xd8"
Pixels = npt.NDArray[np.uint8]
"""``[h, w, 3]``."""


def cut_crop(data: bytes, box: boxes.Box) -> tuple[bytearray, boxes.Box]:
    """An image file that holds the part of another under ``box``, and the box in it, for ``write_crop``.

    A JPEG with restart markers gives little more than that part; any other file is kept as a whole.
    """
    if data[:2] == JPEG_BEGINS:
        with contextlib.suppress(jpeg.JpegError):
            return jpeg.cut(data, jpeg.read_layout(data), box)
    return bytearray(data), box


def write_crop(part: bytearray, box: boxes.Box, out: torch.Tensor) -> None:
    """Decode an image file and resize what lies under ``box`` to ``out``, antialiased, bilinear.

    Args:
        out: uint8 ``[H, W, 3]``, contiguous; RGB is written there.

    Raises what Pillow or torchvision raise for bytes that are no image.
    """
    pixels = decode_jpeg(part) if part[:2] == JPEG_BEGINS else np.array(decode_whole(part))
    left, upper, right, lower = box
    resize_into(pixels[upper:lower, left:right], out)


def decode_box(data: bytes, box: boxes.FractionBox, size: int) -> Image.Image:
    """The part of an image under ``box`` (fractions of pixels) resized to ``size`` × ``size``, antialiased, bilinear.

    Pillow resizes with the pixels around the box, too. So the result equals the whole image resized and then cut.
    """
    try:
        layout = jpeg.read_layout(data)
    except jpeg.JpegError:
        return decode_whole(data).resize((size, size), Image.Resampling.BILINEAR, box=box)
    whole = boxes.with_surroundings(box, size, layout.width, layout.height)
    part, place = jpeg.cut(data, layout, whole)
    there = boxes.moved(box, place[0] - whole[0], place[1] - whole[1])
    return decode_whole(part).resize((size, size), Image.Resampling.BILINEAR, box=there)


def decode_jpeg(data: bytearray) -> Pixels:
    """The pixels of a JPEG, RGB."""
    return _jpeg_decoder()(data)


@cache
def _jpeg_decoder() -> Callable[[bytearray], Pixels]:
    """torchvision's operator, which avoids Pillow's detour through pixels of 4 bytes. Both use libjpeg-turbo with its
    exact inverse DCT, and give the same pixels. ``torchvision.io.decode_jpeg`` warns at each call of its removal.
    """
    # torchvision that was built without JPEG, or for another torch, fails in one of these ways.
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):
        import torchvision.io  # noqa: F401  registers the operator

        operator: Callable[..., torch.Tensor] = torch.ops.image.decode_jpeg.default
        # 3: RGB; False: EXIF is left alone. It gives [3, h, w], the colours of a pixel side by side in memory.
        return lambda data: operator(torch.frombuffer(data, dtype=torch.uint8), 3, False).permute(1, 2, 0).numpy()
    return lambda data: np.array(decode_whole(data))


def decode_whole(data: bytes | bytearray) -> Image.Image:
    """The image of any file, RGB."""
    with Image.open(BytesIO(data)) as image:
        return image.convert("RGB")


def resize_into(pixels: Pixels, out: torch.Tensor) -> None:
    """``pixels`` to ``out``, uint8 ``[H, W, 3]``, antialiased, bilinear.

    torch's private operator saves time, because it takes our output: ``F.interpolate`` returns planes of colours, which
    must be interleaved again. If the private operator fails, the public one is used.
    """
    height, width = out.shape[:2]
    # The view is made by NumPy: torch takes four times as long for it.
    image = torch.from_numpy(pixels[None].transpose(0, 3, 1, 2))
    target = out.as_strided((1, 3, height, width), (0, 1, 3 * width, 3))
    if pixels.shape[:2] == (height, width):
        target.copy_(image)
        return
    try:
        # Positional, because keywords have changed their names: input, size, align_corners, scales.
        resize: Callable[..., object] = torch._C._nn._upsample_bilinear2d_aa
        resize(image, (height, width), False, None, None, out=target)
    # A torch without it, or one whose arguments have changed.
    except (AttributeError, TypeError, RuntimeError):
        resized = F.interpolate(image, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
        target.copy_(resized)


SHIFT = 1 / 8
"""Small images are shifted by at most this part of their side: 4 of CIFAR's 32 pixels (He et al. 2016, §4.2)."""


def open_packed(config: DataConfig, info: DataInfo, path: str) -> LoadedSource:
    """Open the packed set in ``path``, which may be a copy of ``info.path``."""
    files = PackedFiles(path)
    packed = files.info
    train = np.arange(packed.train_size, dtype=np.int64)
    if config.subset < 1:
        train = subset_rows(files.labels(train), config.subset)
    val = packed.train_size + np.arange(packed.val_size, dtype=np.int64)
    small = packed.largest_side <= SMALL_IMAGE_SIZE
    # Photographs are normalised as in an image folder, so that runs on either are comparable.
    mean, std = (packed.mean, packed.std) if small else (crops.MEAN, crops.STD)
    parts = [PackedImages(files, records, small, config) for records in (train, val)]
    return LoadedSource(config, info, parts[0], parts[1], mean, std)


class PackedImages(IndexedImages):
    """Index i is record ``records[i]``."""

    def __init__(
        self, files: PackedFiles, records: sampling.Indices, small: bool, config: DataConfig = boxes.USUAL
    ) -> None:
        self._files, self._records, self._small, self._config = files, records, small, config

    def labels(self, indices: sampling.Indices) -> npt.NDArray[np.int64]:
        """The classes, int64 ``[len(indices)]``."""
        return self._files.labels(self._records[indices])

    def read_ahead(self, indices: sampling.Indices) -> None:
        """Have the system fetch these images' bytes, without waiting for them."""
        self._files.read_ahead(self._records[indices])

    def open_plain(self, index: int) -> WriteImage:
        """A function that writes the central crop of an image into ``[size, size, 3]`` bytes. Raises ImageError."""
        if self._small:
            return self.open_whole(index)
        record = int(self._records[index])
        data, (width, height) = self._read(record), self._files.size(record)

        def write(out: torch.Tensor) -> None:
            size = out.shape[0]
            image = decode_box(data, boxes.central_box(width, height, size, self._config.val_crop), size)
            out.copy_(torch.from_numpy(np.array(image)))

        return lambda out: self._named(record, write, out)

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        """A function that writes a random crop, or for a small image a random shift. Raises ImageError."""
        if self._small:
            whole = self.open_whole(index)
            return lambda out: _shift(whole, draws, out)
        record = int(self._records[index])
        return self._crop(record, boxes.random_box(*self._files.size(record), draws, self._config.augment))

    def whole_side(self, size: int) -> int:
        """Pixels a side of whole images on a device, for training at ``size`` pixels: small ones as training sees them,
        photographs as they are stored; 0 if the photographs are not square and of one size."""
        return size if self._small else self._files.square_side(self._records)

    def open_whole(self, index: int) -> WriteImage:
        """A function that writes the whole image into ``[side, side, 3]`` bytes. Raises ImageError."""
        record = int(self._records[index])
        return self._crop(record, (0, 0, *self._files.size(record)))

    def draw_window(self, side: int, draws: random.Random) -> boxes.Box:
        """The part of a whole image that ``open_random`` writes, after the same draws; black where there is none."""
        if not self._small:
            return boxes.random_box(side, side, draws, self._config.augment)
        right, down = _draw_shift(side, draws)
        return -right, -down, side - right, side - down

    def content(self) -> bytes:
        """A digest of the records and of the set's index, which has a checksum of each image."""
        return hashlib.sha256(self._records.tobytes() + self._files.index_bytes()).digest()

    def _read(self, record: int) -> bytes:
        data = self._files.read(record)
        self._files.check_once(record, data)
        return data

    def _crop(self, record: int, box: boxes.Box) -> WriteImage:
        """Crop the record; the bytes outside the box are released at once."""
        part, place = self._named(record, cut_crop, self._read(record), box)
        return lambda out: self._named(record, write_crop, part, place, out)

    def _named(self, record: int, step: Callable[..., T], *arguments: object) -> T:
        """``step(*arguments)``. An error in it becomes an ImageError that names the record."""
        try:
            return step(*arguments)
        except Exception as error:  # Pillow and torchvision raise many
            intact = self._files.is_intact(record, self._files.read(record))
            reason = error if intact else "its bytes have changed (CRC-32)"
            raise ImageError(f"cannot decode {self._files.where(record)}: {reason}. Pack it again.") from None


def _shift(write_whole: WriteImage, draws: random.Random, out: torch.Tensor) -> None:
    """Write the image shifted by up to an eighth of its side; black where it leaves pixels empty."""
    size = out.shape[0]
    whole = torch.empty_like(out)
    write_whole(whole)
    right, down = _draw_shift(size, draws)
    columns, from_columns = boxes.overlap(size, right)
    rows, from_rows = boxes.overlap(size, down)
    out.zero_()
    out[rows, columns] = whole[from_rows, from_columns]


def _draw_shift(size: int, draws: random.Random) -> tuple[int, int]:
    """Pixels to the right and down."""
    reach = round(size * SHIFT)
    return draws.randint(-reach, reach), draws.randint(-reach, reach)
