"""The benchmark of the driver's cost, on a few trials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.paths import ROOT


@pytest.mark.parametrize("storage", ["memory", "journal"])
def test_each_window_counts_its_trials_with_time_and_bytes(run_command, tmp_path: Path, storage: str) -> None:
    script, output = ROOT / "benchmarks" / "driver_scale.py", tmp_path / "result.json"
    arguments = ("--trials", 8, "--epochs", 2, "--slots", 2, "--windows", 2, "--cases", "random+asha")
    done = run_command(script, *arguments, "--storage", storage, "--output", output)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(output.read_text())["rows"]
    assert (row["case"], row["storage"]) == ("random+asha", storage)
    assert [window["trials"] >= least for window, least in zip(row["windows"], (4, 8), strict=True)] == [True, True]
    assert all(window["ms_per_trial"] > 0 for window in row["windows"])
    if storage == "journal":
        assert all(window["bytes_per_trial"] > 1000 for window in row["windows"])
        assert row["opened"]["trials"] == row["windows"][-1]["trials"]
