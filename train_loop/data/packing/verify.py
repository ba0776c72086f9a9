"""``bigbatch pack --verify`` checks a packed data set for damage; ``--info`` describes it."""

from __future__ import annotations

import os
import sys

import numpy as np

from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.sets.layout import printable


def verify_packed_set(folder: str) -> int:
    """Check the index, and every shard's SHA-256, which covers all images and what the shard says of them.

    Returns the exit code. Raises ConfigError where the index or a shard's length says enough.
    """
    info = schema.read_info(folder)
    schema.check_index(folder)
    wrong = [s.file for s in info.shards if schema.file_sha256(os.path.join(folder, s.file)) != s.sha256]
    if wrong:
        said = f"the bytes of {', '.join(wrong)} in {folder} have changed (SHA-256). Copy or pack it again."
        print(f"bigbatch pack: failed: {said}", file=sys.stderr)
        return 1
    print(f"{info.train_size + info.val_size} images in {len(info.shards)} shards are as they were packed")
    return 0


def show_packed_set(folder: str) -> int:
    """Print the facts of the folder. Returns the exit code. Raises ConfigError if its index is damaged."""
    schema.check_index(folder)
    files = schema.PackedFiles(folder)
    info, columns = files.info, files.columns()
    some = ", ".join(map(printable, info.class_names[:5])) + (", …" if len(info.class_names) > 5 else "")
    medians = " × ".join(f"{np.median(columns[side]):.0f}" for side in ("width", "height"))
    print(f"source         {info.source} ({info.kind}), fingerprint {info.fingerprint[:12]}")
    print(f"profile        {', '.join(f'{name} {value}' for name, value in info.profile.items())}")
    print(f"images         {info.train_size} training, {info.val_size} validation, {info.rejected} rejected")
    print(f"classes        {len(info.class_names)}: {some}")
    print(f"pixels         {medians} (medians), {columns['bytes'].mean() / 1000:.1f} kB an image")
    print(f"shards         {len(info.shards)} files, {sum(shard.bytes for shard in info.shards) / 1e6:.1f} MB")
    return 0
