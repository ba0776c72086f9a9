"""Fixtures of scaling studies whose trainings are stood in for."""

import functools
from pathlib import Path

import pytest

from bigbatch.tune.commands import scale as command
from bigbatch.tune.scaling import measuring
from helpers.scaled_sizes import NODES, SCALED, Trainings


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    stand_in = Trainings()
    monkeypatch.setattr(command, "find_machine", lambda: NODES)
    monkeypatch.setattr(command, "measure_size", functools.partial(measuring.measure_size, run=stand_in))
    return stand_in


@pytest.fixture
def best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "best.json").write_text(SCALED.to_json())
    return tmp_path / "study" / "best.json"
