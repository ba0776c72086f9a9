"""Crops cut out of a JPEG without decoding the rest: baseline JPEGs with restart markers. No torch.

Huffman codes have no seams: to decode the last rows of an ordinary JPEG, all codes before them must be
read, and reading them is most of the work. A restart marker is a seam. With one every few blocks (an
*interval*, here about 32 pixels of a row of blocks), ``cut`` copies the intervals under a crop, writes their
extent into the header and numbers the markers anew. The result is an ordinary JPEG that any decoder reads,
and its pixels are those of the whole image. The stored files are ordinary JPEGs, too: a table in an
application segment at their front says where the intervals begin (``stamp``).

Source of the format: ITU-T T.81, §B.2 (segments), §E.1.3 (restart intervals).
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bigbatch.train_loop.data.pixels.boxes import Box

INTERVAL_PIXELS = 32
"""Width of an interval. Costs 4 % of the bytes of ImageNet, more if a row's blocks are a prime number; 64 costs 1 %,
but more pixels are decoded that no crop shows."""

MARGIN = 1
"""Pixels around a crop that are decoded too: chroma that was stored at half size is interpolated from its
neighbours, one pixel away. With them the crop's own pixels equal those of a full decode, bit for bit."""

NARROW = 4
"""Pixels: in an image that is not wider, libjpeg-turbo does not interpolate chroma of half the width (jdsample.c)."""

MIN_PIXELS = 128 * 128
"""Smaller images are stored unchanged: a crop's header would cost more than it saves."""

STAMP = b"\xff\xea"
STAMP_NAME = b"BBCUT2\0\0"
STAMP_HEADER = struct.Struct(">2sH8sHHBBHI")
"""Marker APP10, its length (big-endian, as T.81 has it), name, then Layout's fields in their order. After it,
little-endian numbers of 2 bytes: the bytes of the rest of the header, then those of each interval."""

_TABLE = np.dtype("<u2")
_SIZE = struct.Struct(">HH")
_RESTARTS = np.tile(np.arange(0xD0, 0xD8, dtype=np.uint8), 1 << 18)
# For as many intervals as the largest image that Pillow opens has blocks: 90 million pixels / 64.


class JpegError(ValueError):
    """Bytes that are no JPEG, or a JPEG that cannot be cut."""


class Layout(NamedTuple):
    """Where the parts of a JPEG with restart markers lie; byte offsets from its start, sizes in pixels."""

    width: int
    height: int
    mcu_width: int
    mcu_height: int
    """An MCU is the smallest unit of pixels that is coded as a whole: 8 or 16 a side."""
    interval: int
    """MCUs from one restart marker to the next; divides the MCUs of a row."""
    size_offset: int
    """Offset of height and width in the frame header."""
    header_offset: int
    """Offset of the header's first segment after the table."""
    lengths: npt.NDArray[np.unsignedinteger]
    """``[1 + intervals]``: bytes of the header from ``header_offset`` on, then of each interval with the 2 of the
    restart marker, or of the end marker, that follows it."""

    @property
    def columns(self) -> int:
        """Intervals side by side."""
        return -(-self.width // self.mcu_width) // self.interval


def stamp(data: bytes) -> bytes:
    """The JPEG with the table of its intervals in front. Raises JpegError if it has none, or the table does not fit."""
    layout = read_layout(data)
    lengths = layout.lengths
    length = STAMP_HEADER.size + 2 * len(lengths)
    # A segment's length has two bytes. 2: a stamped one would get a second table.
    if length > 0xFFFF or lengths.max() > 0xFFFF or layout.header_offset != 2:
        raise JpegError(f"a table of {len(lengths) - 1} restart intervals does not fit a segment")
    sizes = layout.width, layout.height, layout.mcu_width, layout.mcu_height, layout.interval
    head = STAMP_HEADER.pack(STAMP, length - 2, STAMP_NAME, *sizes, layout.size_offset + length)
    return b"".join((data[:2], head, lengths.astype("<u2").tobytes(), data[2:]))


def read_layout(data: bytes) -> Layout:
    """The layout of a baseline JPEG with restart markers; fast if the JPEG is stamped. Raises JpegError otherwise."""
    try:
        marker, length, name, width, height, mcu_width, mcu_height, interval, at = STAMP_HEADER.unpack_from(data, 2)
        if marker != STAMP or name != STAMP_NAME:
            return _read_layout(data)
    except (IndexError, struct.error):
        raise JpegError("the JPEG ends within its header") from None
    header = length + 4  # after the start of the image and the table
    # NumPy's own error would not be a JpegError, after which callers decode the whole file.
    if len(data) < header:
        raise JpegError("the JPEG ends within its header")
    lengths = np.frombuffer(data, _TABLE, (header - 2 - STAMP_HEADER.size) // 2, 2 + STAMP_HEADER.size)
    return Layout(width, height, mcu_width, mcu_height, interval, at, header, lengths)


def _read_layout(data: bytes) -> Layout:
    if data[:2] != b"\xff\xd8":
        raise JpegError("no JPEG: it does not begin with FF D8")
    at, interval, frame = 2, 0, None
    while True:
        if data[at] != 0xFF:
            raise JpegError(f"no marker at byte {at} of the JPEG's header")
        marker, (length,) = data[at + 1], struct.unpack_from(">H", data, at + 2)
        if marker in (0xC0, 0xC1):
            frame = (at + 5, *_frame_sizes(data, at + 5))
        # Progressive, lossless and arithmetic ones; C4, C8 and CC are no frames (T.81, table B.1).
        elif 0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            raise JpegError("not a baseline JPEG")
        elif marker == 0xDD:
            (interval,) = struct.unpack_from(">H", data, at + 4)
        at += 2 + length
        if marker == 0xDA:
            break
    if frame is None or not interval:
        raise JpegError("the JPEG has no frame header" if frame is None else "the JPEG has no restart markers")
    layout = Layout(*frame[1:], interval, frame[0], 2, np.diff(_segments(data, at), prepend=2))
    row = -(-layout.width // layout.mcu_width)
    expected = row * -(-layout.height // layout.mcu_height) // interval
    if row % interval or len(layout.lengths) != expected + 1:
        raise JpegError(f"{len(layout.lengths) - 1} restart intervals of {interval} do not make rows of {row} blocks")
    return layout


def _frame_sizes(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Width, height, MCU width, MCU height."""
    height, width, components = struct.unpack_from(">HHB", data, at)
    if components == 1:  # a scan of one component is not interleaved: its unit is one block of 8 × 8
        return width, height, 8, 8
    factors = [data[at + 6 + 3 * number] for number in range(components)]
    return width, height, 8 * max(f >> 4 for f in factors), 8 * max(f & 15 for f in factors)


def _segments(data: bytes, start: int) -> npt.NDArray[np.int64]:
    """Where each interval starts, and the last one's end marker ends.

    In coded data a byte FF is followed by 00, unless it begins a marker.
    """
    codes = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(codes[start:-1] == 0xFF) + start
    following = codes[at + 1]
    restarts = at[(following >= 0xD0) & (following <= 0xD7)]
    ends = at[following == 0xD9]
    if not len(ends):
        raise JpegError("the JPEG is cut short: no end marker")
    other = at[(following != 0) & (following != 0xFF) & ~((following >= 0xD0) & (following <= 0xD9))]
    # Markers after the end belong to another image, such as an appended thumbnail.
    if len(other) and other[0] < ends[0]:
        raise JpegError("the JPEG has more than one scan")
    return np.concatenate([[start], restarts[restarts < ends[0]] + 2, [ends[0] + 2]])


def cut(data: bytes, layout: Layout, box: Box) -> tuple[bytearray, Box]:
    """The smallest JPEG inside ``data`` whose pixels under ``box`` are those of the whole image.

    Returns:
        The JPEG, and the same box in its coordinates.
    """
    left, upper, right, lower = box
    width, height, mcu_width, tall, interval, size_offset, header_offset, lengths = layout
    wide, columns = mcu_width * interval, layout.columns
    top, bottom = max(upper - MARGIN, 0) // tall, -(-min(lower + MARGIN, height) // tall)
    first, last = max(left - MARGIN, 0) // wide, -(-min(right + MARGIN, width) // wide)
    if first and min(width, last * wide) - first * wide <= NARROW:
        first -= 1
    # The intervals of a row under the crop follow each other. Few NumPy calls: a call costs as much as its numbers.
    bounds = np.add.accumulate(lengths[: bottom * columns + 1], dtype=np.int64)
    bounds += header_offset
    header_end = int(bounds[0])
    starts = bounds[top * columns + first : -1 : columns].tolist()
    ends = bounds[top * columns + last :: columns].tolist()
    if last - first == columns:
        starts, ends = starts[:1], ends[-1:]
    rows = [data[i:j] for i, j in zip(starts, ends, strict=True)]
    out = bytearray().join([data[:2], data[header_offset:header_end], *rows])
    # The last byte of each interval is its marker's, which is numbered anew.
    markers = lengths[1:].reshape(-1, columns)[top:bottom, first:last].cumsum(dtype=np.int64)
    markers += header_end - header_offset + 1
    codes = np.frombuffer(out, np.uint8)
    codes[markers] = _RESTARTS[: len(markers)]
    out[-1] = 0xD9
    x, y = first * wide, top * tall
    size = min(height, bottom * tall) - y, min(width, last * wide) - x
    _SIZE.pack_into(out, size_offset - header_offset + 2, *size)
    return out, (left - x, upper - y, right - x, lower - y)


# --- making such JPEGs ---


def best_interval(width: int, mcu_width: int) -> int:
    """MCUs an interval: the divisor of a row's MCUs whose width is nearest to ``INTERVAL_PIXELS``."""
    row = -(-width // mcu_width)
    divisors = [count for count in range(1, row + 1) if row % count == 0]
    # By ratio: half the width is as far off as twice the width.
    return min(divisors, key=lambda count: abs(np.log(count * mcu_width / INTERVAL_PIXELS)))


def jpegtran_path() -> str | None:
    """libjpeg's lossless transcoder: from the environment variable ``JPEGTRAN``, else on the path."""
    return shutil.which(os.environ.get("JPEGTRAN") or "jpegtran")


def with_restarts(data: bytes, jpegtran: str) -> bytes:
    """The same coefficients with restart markers, optimised codes and no metadata; needs ``jpegtran``.

    Raises JpegError with the program's words, also where it only warns: the data are damaged then.
    """
    with Image.open(BytesIO(data)) as image:
        width, sampling = image.width, getattr(image, "layer", None) or [(1, 1, 1, 0)]
    mcu = 8 if len(sampling) == 1 else 8 * max(component[1] for component in sampling)
    command = [jpegtran, "-copy", "none", "-optimize", "-restart", f"{best_interval(width, mcu)}B"]
    done = subprocess.run(command, input=data, capture_output=True)
    if done.returncode or done.stderr:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise JpegError(words[0] if words else f"jpegtran ended with {done.returncode}")
    return done.stdout


def encode(image: Image.Image, quality: int | None) -> bytes:
    """An RGB or grey image as JPEG with restart markers; plain below ``MIN_PIXELS``.

    Args:
        quality: 1 to 100, chroma at half size; None: the tables and the sampling of the JPEG that ``image``
            was opened from, with which decoding and encoding again changes pixels by rounding alone.
    """
    keywords: dict[str, object] = {"quality": "keep", "subsampling": "keep"}
    mcu = 8 if image.mode == "L" else 8 * max((c[1] for c in getattr(image, "layer", ())), default=2)
    if quality is not None:
        keywords = {"quality": quality, "subsampling": "4:2:0"}
        mcu = 8 if image.mode == "L" else 16
    if image.width * image.height >= MIN_PIXELS:
        keywords["restart_marker_blocks"] = best_interval(image.width, mcu)
    buffer = BytesIO()
    image.save(buffer, "JPEG", optimize=True, **keywords)
    return buffer.getvalue()
