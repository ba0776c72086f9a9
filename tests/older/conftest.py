"""Files that older commits wrote, copied to where a test may change them."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent / "data" / "6dde4d6"


@pytest.fixture
def stored() -> Path:
    """The files as they are; not to be written."""
    return DATA


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a part of the stored files, as a user moves a folder: nothing lies where it was made."""

    def copy(part: str) -> Path:
        archive, moved = DATA / f"{Path(part).parts[0]}.tar.xz", tmp_path / "moved"
        if archive.exists():
            with tarfile.open(archive) as opened:
                opened.extractall(moved, filter="fully_trusted")  # the modes as they were, 0700 among them
        else:
            shutil.copytree(DATA / part, moved / part)
        return moved / part

    return copy


@pytest.fixture(scope="session")
def tiny_network() -> Path:
    """The folder that, on PYTHONPATH, makes the network of the stored runs known to torchvision."""
    return Path(__file__).resolve().parent / "tiny_network"
