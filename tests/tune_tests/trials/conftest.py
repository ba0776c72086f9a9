"""A study of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbatch.tune.storage.store import StudyStore


@pytest.fixture
def store(tmp_path: Path):
    store = StudyStore.create(tmp_path / "study", "s", {}, None)
    yield store
    store.close()
