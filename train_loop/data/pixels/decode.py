"""From an image file's bytes to a crop of given size: only what lies under the crop is decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from bigbatch.train_loop.data.pixels import boxes, jpeg

JPEG_BEGINS = b"\xff\xd8"
Pixels = npt.NDArray[np.uint8]
"""``[h, w, 3]``."""


def cut_crop(data: bytes, box: boxes.Box) -> tuple[bytearray, boxes.Box]:
    """An image file that holds the part of another under ``box``, and the box in it, for ``write_crop``.

    Of a JPEG with restart markers little more than that part; any other file as a whole.
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

    By Pillow, which resizes with the pixels around the box too: those of the whole image resized and then cut.
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
    """RGB."""
    return _jpeg_decoder()(data)


@cache
def _jpeg_decoder() -> Callable[[bytearray], Pixels]:
    """The fastest that is installed. All are libjpeg-turbo with its exact inverse DCT and give the same pixels.

    simplejpeg is a little faster than torchvision's operator, which saves Pillow's way through pixels of 4 bytes.
    ``torchvision.io.decode_jpeg`` itself warns at each call that it will be removed one day.
    """
    with contextlib.suppress(ImportError):
        import simplejpeg

        decoder: Callable[[bytearray], Pixels] = simplejpeg.decode_jpeg
        return decoder
    # torchvision that was built without JPEG, or for another torch, fails in one of these ways.
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):
        import torchvision.io  # noqa: F401  registers the operator

        operator: Callable[..., torch.Tensor] = torch.ops.image.decode_jpeg.default
        # 3: RGB; False: EXIF is left alone. It gives [3, h, w], the colours of a pixel side by side in memory.
        return lambda data: operator(torch.frombuffer(data, dtype=torch.uint8), 3, False).permute(1, 2, 0).numpy()
    return lambda data: np.array(decode_whole(data))


def decode_whole(data: bytes | bytearray) -> Image.Image:
    """RGB."""
    with Image.open(BytesIO(data)) as image:
        return image.convert("RGB")


def resize_into(pixels: Pixels, out: torch.Tensor) -> None:
    """``pixels`` to ``out``, uint8 ``[H, W, 3]``, antialiased, bilinear.

    torch's operator with an output of ours saves time: ``F.interpolate`` returns planes of colours, which must be
    interleaved again. But it is private, so the public call stands by.
    """
    height, width = out.shape[:2]
    # One call each: as an array, for torch takes four times as long for a view.
    image = torch.from_numpy(pixels[None].transpose(0, 3, 1, 2))
    target = out.as_strided((1, 3, height, width), (0, 1, 3 * width, 3))
    if pixels.shape[:2] == (height, width):
        target.copy_(image)
        return
    try:
        # Positions, for keywords have changed their names: input, size, align_corners, scales.
        resize: Callable[..., object] = torch._C._nn._upsample_bilinear2d_aa
        resize(image, (height, width), False, None, None, out=target)
    # A torch without it, or one whose arguments have changed.
    except (AttributeError, TypeError, RuntimeError):
        resized = F.interpolate(image, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
        target.copy_(resized)
