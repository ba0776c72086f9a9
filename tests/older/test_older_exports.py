"""Studies of older commits are exported and race as those of today."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest

from bigbatch.tune.export.command import main
from bigbatch.tune.watch.race_command import race_main


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_an_older_study_is_exported_and_races(
    copy_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = copy_of(f"runs/{name}")
    out = tmp_path / "out"
    options = ("--csv", out, "--sqlite", out / "copy.db", "--tensorboard", out / "tb")
    assert main([str(folder), *map(str, options)]) == 0
    stored = pq.read_table(folder / "trials.parquet").to_pylist()
    with (out / "trials.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["trial"]) < len(stored)]
    assert [(int(row["trial"]), row["state"]) for row in rows] == [(row["trial"], row["state"]) for row in stored]
    copy = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{out / 'copy.db'}")
    assert [trial.value for trial in copy.trials if trial.state.name == "COMPLETE"] == [
        row["value"] for row in stored if row["state"] == "COMPLETE"
    ]
    assert len(list((out / "tb" / folder.name).glob("trial-*"))) == len(stored)
    capsys.readouterr()
    assert race_main([str(folder)]) == 0
    assert capsys.readouterr().out.count(f"{folder.name}/trial-") == sum(row["epochs"] > 0 for row in stored)
