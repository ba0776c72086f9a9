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
def digits_source() -> DataSource:
    from bigbatch.train_loop.config import DataConfig
    from bigbatch.train_loop.data.catalogue import open_data

    return open_data(DataConfig())
