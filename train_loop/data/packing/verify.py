"""``bigbatch pack --verify`` checks a packed data set for damage; ``--info`` describes it."""

from __future__ import annotations

import math
import os
import sys
from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packed.schema import PackedFiles, PackedInfo
from bigbatch.train_loop.data.pixels.jpeg import JpegError, read_layout
from bigbatch.train_loop.data.sets.layout import printable
from bigbatch.train_loop.errors import ImageError

SHEET, TILE, GAP = "contact_sheet.png", 128, 6


def verify_packed_set(folder: str) -> int:
    """Check the index, every shard's SHA-256, every record's CRC-32, label and size, and decode it.

    Returns the exit code. Raises ConfigError where the index or a shard's length says enough.
    """
    files = PackedFiles(folder)
    schema.check_index(folder)
    info = files.info
    wrong = [
        f"shard {os.path.join(folder, shard.file)}: its bytes have changed (SHA-256)"
        for shard in info.shards
        # The whole file, with what lies between the records: a CRC of each record alone does not cover it.
        if schema.file_sha256(os.path.join(folder, shard.file)) != shard.sha256
    ]
    records = info.train_size + info.val_size
    if files.records != records:
        wrong.append(f"{schema.INDEX}: {files.records} rows for {records} images")
    else:
        wrong += [reason for record in range(records) if (reason := _wrong(files, record))]
    for line in wrong:
        print(line)
    if wrong:
        print(f"bigbatch pack: failed: {len(wrong)} faults in {folder}. Copy or pack it again.", file=sys.stderr)
        return 1
    print(f"{records} images in {len(info.shards)} shards are as they were packed")
    return 0


def _wrong(files: PackedFiles, record: int) -> str | None:
    try:
        data = files.read(record)
        if not files.is_intact(record, data):
            return f"{files.where(record)}: its bytes have changed (CRC-32)"
        if not 0 <= files.label(record) < len(files.info.class_names):
            return f"{files.where(record)}: label {files.label(record)} of {len(files.info.class_names)} classes"
        with Image.open(BytesIO(data)) as image:
            image.load()
            if image.size != files.size(record):
                return f"{files.where(record)}: {image.size} pixels, {files.size(record)} by the index"
    except ImageError as error:
        return str(error)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and others
        return f"{files.where(record)}: {error}"
    return None


def show_packed_set(folder: str) -> int:
    """Print the facts of the folder and write its contact sheet. Raises ConfigError if its index is damaged."""
    files = PackedFiles(folder)
    schema.check_index(folder)
    info = files.info
    for name, value in _facts(folder, files, info):
        print(f"{name:14}{value}")
    try:
        _contact_sheet(files).save(os.path.join(folder, SHEET))
        print(f"{'contact sheet':14}{os.path.join(folder, SHEET)}")
    except OSError as error:  # another's folder, a file system that is read-only or full
        print(f"{'contact sheet':14}not written: {error.strerror or error}")
    return 0


def _facts(folder: str, files: PackedFiles, info: PackedInfo) -> list[tuple[str, str]]:
    sizes = files.columns()
    counts = np.bincount(sizes["label"][: info.train_size], minlength=len(info.class_names))
    # 256 suffice for a share; to read all would take minutes.
    sample = np.unique(np.linspace(0, files.records - 1, 256).astype(int))
    cut = np.mean([_can_be_cut(files.read(int(record))) for record in sample])
    some = ", ".join(map(printable, info.class_names[:5])) + (", …" if len(info.class_names) > 5 else "")
    way = info.profile["name"] + (
        f", short side {info.profile['short_side']}" if info.profile["name"] == "fast" else ""
    )
    rejected = os.path.join(folder, schema.REJECTED)
    # A staged copy has none.
    reasons = pq.read_table(rejected)["reason"].to_pylist() if os.path.exists(rejected) else []
    return [
        ("source", f"{info.source} ({info.kind}), fingerprint {info.fingerprint[:12]}"),
        ("profile", f"{way}, quality {info.profile['quality']}, lossless {info.profile['jpegtran']}"),
        ("images", f"{info.train_size} training, {info.val_size} validation, {info.rejected} rejected"),
        ("classes", f"{len(info.class_names)}: {some}; {counts.min()} to {counts.max()} training images each"),
        ("pixels", f"{np.median(sizes['width']):.0f} × {np.median(sizes['height']):.0f} (medians), "
                   f"{sizes['bytes'].mean() / 1000:.1f} kB an image"),
        ("cut", f"{cut:.0%} of images are decoded under the crop alone"),
        ("mean, std", f"{info.mean}, {info.std}"),
        ("shards", f"{len(info.shards)} files, {sum(shard.bytes for shard in info.shards) / 1e6:.1f} MB"),
        *(("rejected", f"{reasons.count(reason)} × {reason}") for reason in sorted(set(reasons))),
    ]  # fmt: skip


def _can_be_cut(data: bytes) -> bool:
    try:
        read_layout(data)
    except JpegError:
        return False
    return True


def _contact_sheet(files: PackedFiles) -> Image.Image:
    """Up to 48 evenly spread images, with the names of their classes: labels that were mixed up show here."""
    records = np.unique(np.linspace(0, files.records - 1, 48).astype(int))
    columns = math.ceil(math.sqrt(len(records) * 4 / 3))
    line = TILE + 14
    sheet = Image.new("RGB", (columns * TILE, math.ceil(len(records) / columns) * line), "white")
    draw = ImageDraw.Draw(sheet)
    for place, record in enumerate(records.tolist()):
        x, y = place % columns * TILE, place // columns * line
        with Image.open(BytesIO(files.read(record))) as image:
            small = image.convert("RGB")
        small.thumbnail((TILE - GAP, TILE - GAP))
        sheet.paste(small, (x, y))
        name = files.info.class_names[files.label(record)]
        # Pillow without FreeType has a font of these letters alone, and raises an error for others.
        draw.text((x, y + small.height), name[:20].encode("latin-1", "replace").decode("latin-1"), fill="black")
    return sheet
