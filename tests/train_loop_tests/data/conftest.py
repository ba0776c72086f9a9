"""Data that tests read and do not change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bigbatch.train_loop.data.source import DataSource


@pytest.fixture(scope="session")
def images_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.packed_sets import write_noise_images

    return write_noise_images(tmp_path_factory.mktemp("noise") / "images")


@pytest.fixture(scope="session")
def packed_images(tiny_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_images`` as a packed set: to be copied by who changes something."""
    from helpers.packed_sets import pack_here

    return pack_here(tiny_images, tmp_path_factory.mktemp("tiny-set") / "packed")


@pytest.fixture(scope="session")
def digits_source() -> DataSource:
    from bigbatch.train_loop.config import DataConfig
    from bigbatch.train_loop.data.catalogue import open_data

    return open_data(DataConfig())
