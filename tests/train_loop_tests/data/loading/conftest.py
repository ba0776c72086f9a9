"""An image folder, and one with images that cannot be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ring")
    draws = np.random.default_rng(0)
    for part, count in (("train", 20), ("val", 5)):
        for name in "ab":
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (24, 24 + number, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number:02d}.png")
    return root


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rings that are made."""
    from bigbatch.train_loop.data.loading import ring

    rings, real = list[Any](), ring.Ring
    monkeypatch.setattr(ring, "Ring", lambda *args, **options: rings.append(real(*args, **options)) or rings[-1])
    return rings
