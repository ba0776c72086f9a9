"""Studies of older commits open in a notebook as those of today."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bigbatch import open_study


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_an_older_study_opens(copy_of: Callable[[str], Path], name: str) -> None:
    folder = copy_of(f"runs/{name}")
    stored = pq.read_table(folder / "trials.parquet").to_pylist()
    study = open_study(folder)
    rows = {row["trial"]: row for row in study.trials.to_dict("records")}
    assert [(rows[row["trial"]]["state"], rows[row["trial"]]["epochs"]) for row in stored] == [
        (row["state"], row["epochs"]) for row in stored
    ]
    best = json.loads((folder / "best.json").read_text())
    assert study.best.config.optimizer.peak_lr == best["optimizer"]["peak_lr"]
    assert study.best.value == max(row["value"] for row in stored if row["value"] is not None)
    assert "learning-curves" in study.figures and len(study.epochs) >= sum(row["epochs"] for row in stored)
