"""Crops that are cut out of a JPEG, against libjpeg's decode of the whole; real files where they are at hand."""

import os
import random
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.data.packed import images as decode
from bigbatch.train_loop.data.pixels import boxes, crops, jpeg
from helpers.packed_sets import jpeg_bytes, photograph

SAMPLE = Path(os.environ.get("BIGBATCH_IMAGENET_SAMPLE", "imagenet_sample_500.tar"))


def restarted(image: Image.Image, sampling: str = "4:2:0", interval: int | None = None) -> bytes:
    """Encoded here, not by the module: its own reading of the format must not check itself."""
    mcu = 8 if image.mode == "L" or sampling == "4:4:4" else 16
    buffer = BytesIO()
    keywords = {} if image.mode == "L" else {"subsampling": sampling}
    blocks = interval or jpeg.best_interval(image.width, mcu)
    image.save(buffer, "JPEG", quality=90, restart_marker_blocks=blocks, **keywords)
    return buffer.getvalue()


def pixels_of(data: bytes | bytearray) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)))


def random_box(width: int, height: int, draws: random.Random) -> boxes.Box:
    left, right = sorted(draws.sample(range(width + 1), 2))
    upper, lower = sorted(draws.sample(range(height + 1), 2))
    return left, upper, right, lower


def assert_crops_equal(data: bytes, count: int, draws: random.Random) -> None:
    whole = pixels_of(data)
    layout = jpeg.read_layout(data)
    for _ in range(count):
        box = random_box(layout.width, layout.height, draws)
        part, (left, upper, right, lower) = jpeg.cut(data, layout, box)
        pixels = pixels_of(part)
        expected = whole[box[1] : box[3], box[0] : box[2]]
        assert np.array_equal(pixels[upper:lower, left:right], expected), (layout, box)


@pytest.mark.parametrize(("mode", "sampling"), [("RGB", "4:4:4"), ("RGB", "4:2:2"), ("RGB", "4:2:0"), ("L", "")])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 251), (129, 1), (1, 129), (17, 300)])
def test_a_crop_equals_that_of_the_whole_image_bit_for_bit(mode: str, sampling: str, size: tuple[int, int]) -> None:
    """Plain and stamped; of the interval that suits, of one block, and of a whole row."""
    image, row = photograph(*size).convert(mode), -(-size[0] // (16 if sampling in ("4:2:2", "4:2:0") else 8))
    data = restarted(image, sampling)
    for stored in (data, jpeg.stamp(data), restarted(image, sampling, 1), restarted(image, sampling, row)):
        assert_crops_equal(stored, 25, random.Random(f"{mode} {sampling} {size}"))


@pytest.mark.parametrize("width", [193, 195, 196, 197, 209])
def test_the_last_pixels_of_a_row(width: int) -> None:
    """Of a JPEG of up to four pixels' width libjpeg-turbo interpolates no chroma; alone they would make one."""
    data = restarted(photograph(width, 160), interval=1)
    whole = pixels_of(data)
    for left in range(width - 8, width):
        part, (x, upper, right, lower) = jpeg.cut(data, jpeg.read_layout(data), (left, 50, width, 90))
        assert np.array_equal(pixels_of(part)[upper:lower, x:right], whole[50:90, left:])


def test_a_stamped_file_is_the_same_ordinary_jpeg() -> None:
    data = restarted(photograph(300, 200))
    stamped = jpeg.stamp(data)
    assert np.array_equal(pixels_of(data), pixels_of(stamped))
    table, parsed = jpeg.read_layout(stamped), jpeg._read_layout(stamped)
    assert np.array_equal(table.lengths[1:], parsed.lengths[1:])
    assert (table.width, table.height, table.size_offset) == (300, 200, parsed.size_offset)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda data: b"", "ends within"),
        (lambda data: b"GIF89a" + data, "no JPEG"),
        (lambda data: data[:300], "ends within"),
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: Image.open(BytesIO(data)).tobytes()[:40] + data, "no JPEG"),
        (lambda data: jpeg_bytes(Image.open(BytesIO(data)), progressive=True), "baseline"),
        (lambda data: jpeg_bytes(Image.open(BytesIO(data))), "no restart markers"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, words: str) -> None:
    with pytest.raises(jpeg.JpegError, match=words):
        jpeg.read_layout(make(restarted(photograph(300, 200))))


def test_encoding_again_with_the_files_own_tables_changes_little() -> None:
    for sampling in ("4:4:4", "4:2:2", "4:2:0"):
        buffer = BytesIO()
        photograph(400, 300).save(buffer, "JPEG", quality=92, subsampling=sampling)
        image = Image.open(BytesIO(buffer.getvalue()))
        again = jpeg.encode(image, quality=None)
        difference = np.asarray(image, float) - pixels_of(again).astype(float)
        assert 10 * np.log10(255**2 / np.square(difference).mean()) > 45  # dB
        assert jpeg.read_layout(again).mcu_width == (8 if sampling == "4:4:4" else 16)
        assert_crops_equal(jpeg.stamp(again), 10, random.Random(sampling))


@pytest.mark.skipif(jpeg.jpegtran_path() is None, reason="no jpegtran")
def test_jpegtran_loses_nothing() -> None:
    buffer = BytesIO()
    photograph(400, 300).save(buffer, "JPEG", quality=92, progressive=True)
    stored = jpeg.with_restarts(buffer.getvalue(), jpeg.jpegtran_path() or "")
    assert np.array_equal(np.asarray(Image.open(buffer)), pixels_of(stored))
    assert_crops_equal(stored, 25, random.Random(0))
    with pytest.raises(jpeg.JpegError):
        jpeg.with_restarts(buffer.getvalue()[:3000], jpeg.jpegtran_path() or "")


def test_crop_and_resize_equal_decode_then_torchvision() -> None:
    from torchvision.transforms.v2 import functional

    draws = random.Random(1)
    for sampling in ("4:4:4", "4:2:0"):
        data = jpeg.stamp(restarted(photograph(500, 375), sampling))
        whole = torch.from_numpy(np.array(Image.open(BytesIO(data)))).permute(2, 0, 1)
        for _ in range(10):
            box = left, upper, right, lower = random_box(500, 375, draws)
            out = torch.empty(64, 64, 3, dtype=torch.uint8)
            decode.write_crop(*decode.cut_crop(data, box), out)
            expected = functional.resized_crop(whole, upper, left, lower - upper, right - left, [64, 64])
            torch.testing.assert_close(out.permute(2, 0, 1), expected, atol=1, rtol=0)  # releases round differently


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_all_decoders_give_the_same_pixels(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision, and without it Pillow."""
    data = jpeg.stamp(restarted(photograph(300, 200).convert(mode)))
    outs = []
    for missing in ("", "torchvision.io"):
        if missing:
            monkeypatch.setitem(sys.modules, missing, None)
        decode._jpeg_decoder.cache_clear()
        outs.append(torch.empty(64, 64, 3, dtype=torch.uint8))
        decode.write_crop(*decode.cut_crop(data, (30, 40, 250, 150)), outs[-1])
    decode._jpeg_decoder.cache_clear()
    assert torch.equal(outs[0], outs[1])


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 1200), (224, 224), (130, 200)])
@pytest.mark.parametrize("sampling", ["4:2:0", "4:4:4"])
def test_validation_decodes_the_middle_alone(size: tuple[int, int], sampling: str) -> None:
    """Against decoding, resizing and cutting the whole, by Pillow."""
    stored, png = restarted(photograph(*size), sampling), BytesIO()
    photograph(*size).save(png, "PNG")
    for data in (stored, png.getvalue()):
        mine = decode.decode_box(data, boxes.central_box(*size, 96), 96)
        whole = crops.central_crop(decode.decode_whole(data), 96)
        difference = np.abs(np.asarray(mine).astype(int) - np.asarray(whole))
        assert difference.max() <= 1 and difference.mean() < 0.2  # rounding
