"""Small folders of photographs and of noise, packed sets made of them, and batches compared."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.packing import command
from bigbatch.train_loop.data.packing.shards import PackProfile
from bigbatch.train_loop.data.packing.sources import find_source
from bigbatch.train_loop.data.source import Batch, DataSource
from bigbatch.train_loop.plugins.nested import Nested, tensors_of
from helpers.paths import ROOT

CLASSES = ("ant", "bee", "cat")


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """It compresses as photographs do: smooth colours with edges, noise of several sizes, enlarged and added."""
    draws = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells in (3, 11, 40):
        small = Image.fromarray(draws.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) / 3
    return Image.fromarray(total.astype(np.uint8))


def jpeg_bytes(image: Image.Image, **keywords: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, **keywords)
    return buffer.getvalue()


def write_images(root: Path, train: int = 5, val: int = 2, size: tuple[int, int] = (200, 150)) -> Path:
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                seed = 100 * label + number + 50 * (part == "val")
                data = jpeg_bytes(photograph(size[0] + 8 * number, size[1], seed))
                (root / part / name / f"{number}.jpg").write_bytes(data)
    return root


def write_noise_images(root: Path) -> Path:
    """20 + 7 noise pictures of 3 classes, of several sizes, formats and colour modes."""
    draws = np.random.default_rng(0)
    for part, counts in (("train", (9, 5, 6)), ("val", (4, 2, 1))):
        for name, count in zip(CLASSES, counts, strict=True):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (40 + 7 * number, 60, 3), dtype=np.uint8)
                mode = ("RGB", "L", "CMYK")[number % 3]
                suffix = "JPEG" if number % 2 or mode == "CMYK" else "png"
                Image.fromarray(pixels).convert(mode).save(root / part / name / f"{number}.{suffix}")
    return root


def folder_source(root: Path, **changes: object) -> DataSource:
    return open_data(DataConfig(name=str(root), image_size=16, **changes))  # type: ignore[arg-type]


def flat(steps: Iterable[list[Batch]]) -> list[Batch]:
    return [batch for step in steps for batch in step]


def same(one: Nested, other: Nested) -> bool:
    """Tensor for tensor, in batches or lists of them."""
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def run_pack(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bigbatch.train_loop.data.packing.command", *map(str, arguments)],
        cwd=ROOT / "src", env={**os.environ, **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def pack_here(source: Path | str, target: Path, **profile: object) -> Path:
    """In this process, without the cost of starting others."""
    found = find_source(str(source))
    assert command.pack(found, target, PackProfile(**profile), workers=1, shard_bytes=1 << 30) == 0  # type: ignore[arg-type]
    return target


def write_small_images(root: Path) -> Path:
    """100 + 20 images of noise of 32 × 32 pixels, of 10 classes."""
    draws = np.random.default_rng(0)
    for part, count in (("train", 10), ("val", 2)):
        for name in (f"kind{i}" for i in range(10)):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    return root


def cifar_pickles(root: Path) -> Path:
    root.mkdir()
    draws = np.random.default_rng(0)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        content = {b"data": draws.integers(0, 256, (20, 3072), dtype=np.uint8), b"labels": [i % 10 for i in range(20)]}
        (root / name).write_bytes(pickle.dumps(content))
    (root / "batches.meta").write_bytes(pickle.dumps({b"label_names": [f"kind{i}".encode() for i in range(10)]}))
    return root


def rows(packed: Path, part: str) -> list[dict]:
    """The shards by pyarrow alone."""
    shards = sorted(packed.glob(f"{part}-*.arrow"))
    return [row for shard in shards for row in pa.ipc.open_file(shard).read_all().to_pylist()]
