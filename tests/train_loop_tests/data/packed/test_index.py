"""A process reads the index of a packed set once, and again only where the file has been replaced."""

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.data.packed.schema import INDEX
from helpers.packed_sets import pack_here


@pytest.fixture
def packed(tmp_path: Path, packed_images: Path) -> Path:
    """A set that was packed a while ago."""
    folder = shutil.copytree(packed_images, tmp_path / "packed")
    os.utime(folder / INDEX, (time.time() - 60,) * 2)
    return folder


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are mapped from now on."""
    seen: list[str] = []
    real = pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda path, *more: seen.append(str(path)) or real(path, *more))
    return seen


def test_an_index_that_was_replaced_is_read_anew(packed, tmp_path, tiny_images, mapped):
    config = DataConfig(name=str(packed), image_size=16)
    assert describe_data_set(config).class_names == ("dark", "light")
    images = shutil.copytree(tiny_images, tmp_path / "images")
    for part in ("train", "val"):
        (images / part / "light").rename(images / part / "bright")
    other = pack_here(images, tmp_path / "other")
    os.utime(other / INDEX, (time.time() - 60,) * 2)
    shutil.rmtree(packed)
    other.rename(packed)
    mapped.clear()
    assert describe_data_set(config).class_names == ("bright", "dark")
    assert mapped == [str(packed / INDEX)]
