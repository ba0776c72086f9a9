"""``bigbatch pack --verify`` checks a packed data set for damage; ``--info`` describes it."""

from __future__ import annotations

import os
import sys

import numpy as np
import pyarrow.parquet as pq

from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packed.schema import PackedFiles, PackedInfo
from bigbatch.train_loop.data.pixels.jpeg import JpegError, read_layout
from bigbatch.train_loop.data.sets.layout import printable


def verify_packed_set(folder: str) -> int:
    """Check the index, and every shard's SHA-256, which covers all images and what the shard says of them.

    Returns the exit code. Raises ConfigError where the index or a shard's length says enough.
    """
    info = schema.read_info(folder)
    schema.check_index(folder)
    paths = {os.path.join(folder, shard.file): shard.sha256 for shard in info.shards}
    wrong = [path for path, expected in paths.items() if schema.file_sha256(path) != expected]
    for path in wrong:
        print(f"shard {path}: its bytes have changed (SHA-256)")
    if wrong:
        print(f"bigbatch pack: failed: {len(wrong)} faults in {folder}. Copy or pack it again.", file=sys.stderr)
        return 1
    print(f"{info.train_size + info.val_size} images in {len(paths)} shards are as they were packed")
    return 0


def show_packed_set(folder: str) -> int:
    """Print the facts of the folder. Returns the exit code. Raises ConfigError if its index is damaged."""
    files = PackedFiles(folder)
    schema.check_index(folder)
    for name, value in _facts(folder, files, files.info):
        print(f"{name:14}{value}")
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
