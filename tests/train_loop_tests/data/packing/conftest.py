"""A folder of photographs and the set that is packed of it: to be copied by who changes something."""

from pathlib import Path

import pytest

from helpers.packed_sets import pack_here, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 + 6 of 3 classes."""
    return write_images(tmp_path_factory.mktemp("photographs") / "photos")


@pytest.fixture(scope="session")
def packed(images: Path) -> Path:
    return pack_here(images, images.parent / "packed")
