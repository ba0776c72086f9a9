"""Fixtures of whole searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.searches import TINY


@pytest.fixture
def tiny(tiny_images: Path, tiny_space: Path) -> tuple[str, ...]:
    """Arguments of a search whose trials train in a moment."""
    return ("--space", str(tiny_space), "--data", str(tiny_images), *TINY)
