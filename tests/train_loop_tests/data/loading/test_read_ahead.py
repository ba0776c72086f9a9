"""What is asked for before it is read: by whom, when, and how far ahead."""

import errno
import mmap
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.data.loading.loader import BatchFiller, IndexedImages, ReadPurpose, WriteImage
from bigbatch.train_loop.data.loading.ring import Ring, UpcomingIndices
from bigbatch.train_loop.data.packed.schema import PackedFiles
from bigbatch.train_loop.data.source import Epoch
from helpers.packed_sets import pack_here


@pytest.mark.parametrize("seed", range(20))
def test_every_image_is_asked_for_once_in_order_and_not_after_its_task(seed: int) -> None:
    draws = random.Random(seed)
    batches = [np.arange(100 * n, 100 * n + draws.randint(1, 60)) for n in range(draws.randint(1, 30))]
    order = np.concatenate(batches).tolist()
    coming, asked, read = UpcomingIndices(batches), [], 0
    while read < len(order):
        images, ahead = min(draws.randint(1, 20), len(order) - read), draws.choice([0, 16, 32, 256])
        found = coming.take(images, ahead).tolist()
        asked += found
        read += images
        assert len(found) <= 2 * images and read <= len(asked)
    assert asked == order


class LateImages(IndexedImages):
    """Says in a file what is asked for and what is read."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def _say(self, line: str) -> None:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())  # one call: lines of two processes do not mix
        os.close(descriptor)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return indices

    def read_ahead(self, indices: npt.NDArray[np.int64]) -> None:
        self._say("".join(f"ask {index}\n" for index in indices))

    def open_plain(self, index: int) -> WriteImage:
        self._say(f"read {index}\n")
        return lambda out: None

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        return self.open_plain(index)


def test_processes_ask_for_what_any_of_them_reads_later(tmp_path: Path) -> None:
    images = LateImages(tmp_path / "log")
    ring = Ring(BatchFiller(images, images, 240), 2, 8, 4)
    order = [np.arange(8 * number, 8 * number + 8) for number in range(30)]
    assert len(list(ring.read(ReadPurpose(False, Epoch(0, 0)), order, 4))) == 30
    ring.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert Counter(lines) == Counter(f"{word} {index}" for word in ("ask", "read") for index in range(240))
    # A process that does not get a core for a while is overtaken, so not all of them.
    places = [lines.index(f"read {i}") - lines.index(f"ask {i}") for i in range(100, 240)]
    assert torch.tensor(places).float().median() > 16


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedFiles:
    root = tmp_path_factory.mktemp("long") / "images"
    for part, size in (("train", (900, 700)), ("train", (300, 200)), ("val", (300, 200))):
        (root / part / "a").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / part / "a" / f"{size[0]}.jpg", quality=95)
    return PackedFiles(str(pack_here(root, root.parent / "packed")))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and length of each request."""
    found: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def spy(descriptor: int, offset: int, length: int, advice: int) -> None:
        found.append((offset, length))
        real(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", spy)
    return found


def not_in_memory(*arguments: object) -> int:
    raise OSError(errno.EOPNOTSUPP, "as file systems say that cannot tell")


def test_long_records_are_asked_for_whole(packed, asked, monkeypatch):
    """Of a request Linux reads no more than the file system's read-ahead, 128 kB where nobody has changed it."""
    monkeypatch.setattr(os, "preadv", not_in_memory)
    records = np.arange(2)
    packed.read_ahead(records)
    columns = packed.columns
    assert columns["bytes"].max() > 300_000
    pages = {page for at, size in asked for page in range(at // mmap.PAGESIZE, -(-(at + size) // mmap.PAGESIZE))}
    for begin, size in zip(columns["offset"][records].tolist(), columns["bytes"][records].tolist(), strict=True):
        assert pages.issuperset(range(begin // mmap.PAGESIZE, -(-(begin + size) // mmap.PAGESIZE)))
    most = (1 << 17) // mmap.PAGESIZE
    assert all(-(-(at + size) // mmap.PAGESIZE) - at // mmap.PAGESIZE <= most for at, size in asked)
