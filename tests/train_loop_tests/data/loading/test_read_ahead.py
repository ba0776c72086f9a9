"""What is asked for before it is read: by whom, when, and how far ahead."""

import errno
import mmap
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig, LoaderConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading.loader import BatchFiller, IndexedImages, LoadedSource, ReadPurpose, WriteImage
from bigbatch.train_loop.data.loading.ring import IMAGES_AHEAD, Ring, UpcomingIndices
from bigbatch.train_loop.data.packed import images as packed_images
from bigbatch.train_loop.data.packed.images import PackedImages
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


def test_it_keeps_the_distance_that_is_wanted() -> None:
    coming, asked = UpcomingIndices([np.arange(50)] * 40), 0
    for task in range(1, 101):
        asked += len(coming.take(10, 64))
        if 10 <= task <= 90:
            assert asked - 10 * task == 64
    asked += sum(len(coming.take(10, 64)) for _ in range(100))
    assert asked == 2000


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


def test_a_read_without_processes_asks_for_a_bounded_number(tmp_path: Path) -> None:
    images = LateImages(tmp_path / "log")
    info = DataInfo("late", None, 2000, 3, 2, 8, 3, ("a", "b"), "small")
    config = DataConfig(image_size=8, loader=LoaderConfig(workers=0))
    source = LoadedSource(config, info, images, images, (0, 0, 0), (1, 1, 1))
    order = [np.arange(1500), np.arange(1500, 1999)]
    assert [len(labels) for _, labels in source.read_train(order, Epoch(0, 0))] == [1500, 499]
    lines = (tmp_path / "log").read_text().splitlines()
    assert Counter(lines) == Counter(f"{word} {index}" for word in ("ask", "read") for index in range(1999))
    asked = [line.startswith("ask") for line in lines]
    ahead = np.cumsum(np.where(asked, 1, -1))
    assert 256 <= ahead.max() <= 2 * IMAGES_AHEAD and ahead.min() >= 0


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
    columns = packed.columns()
    assert columns["bytes"].max() > 300_000
    pages = {page for at, size in asked for page in range(at // mmap.PAGESIZE, -(-(at + size) // mmap.PAGESIZE))}
    for begin, size in zip(columns["offset"][records].tolist(), columns["bytes"][records].tolist(), strict=True):
        assert pages.issuperset(range(begin // mmap.PAGESIZE, -(-(begin + size) // mmap.PAGESIZE)))
    most = (1 << 17) // mmap.PAGESIZE
    assert all(-(-(at + size) // mmap.PAGESIZE) - at // mmap.PAGESIZE <= most for at, size in asked)


def test_a_record_whose_first_page_came_with_its_neighbour_is_asked_for(packed, asked, monkeypatch):
    begins = packed.columns()["offset"].tolist()

    def first_pages_are_in_memory(descriptor: int, buffers: object, offset: int, flags: int) -> int:
        if any(offset // mmap.PAGESIZE == begin // mmap.PAGESIZE for begin in begins):
            return 1
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", first_pages_are_in_memory)
    packed.read_ahead(np.arange(2))
    assert len(asked) >= 2
    monkeypatch.setattr(os, "preadv", lambda *arguments: 1)
    asked.clear()
    packed.read_ahead(np.arange(2))
    assert not asked


def test_a_shard_that_is_gone_does_not_keep_others_from_being_asked_for(packed, asked, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "preadv", not_in_memory)
    packed = PackedFiles(str(shutil.copytree(packed.path, tmp_path / "packed")))
    os.unlink(Path(packed.path) / packed.info.shards[0].file)  # training's, the other is validation's
    packed.read_ahead(np.arange(3))
    assert {at for at, _ in asked} == {int(packed.columns()["offset"][2]) // mmap.PAGESIZE * mmap.PAGESIZE}


def test_large_files_are_not_held_while_others_are_opened(packed: PackedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    images = PackedImages(packed, np.arange(3), small=False)
    read: list[int] = []
    real = PackedFiles.read
    monkeypatch.setattr(PackedFiles, "read", lambda self, record: read.append(record) or real(self, record))
    monkeypatch.setattr(packed_images, "READ_EARLY_BYTES", 300_000)
    writes = [images.open_random(index, random.Random(index)) for index in range(3)]
    large = [record for record in range(3) if packed.bytes_of(record) > 300_000]
    assert len(large) == 1 and read == [record for record in range(3) if record not in large]
    outs = [torch.zeros((32, 32, 3), dtype=torch.uint8) for _ in writes]
    for write, out in zip(writes, outs, strict=True):
        write(out)
    monkeypatch.setattr(packed_images, "READ_EARLY_BYTES", 1 << 30)
    for index, out in enumerate(outs):
        again = torch.zeros_like(out)
        images.open_random(index, random.Random(index))(again)
        assert torch.equal(out, again) and out.any()
