"""Whole searches for other objectives, with a real Ray and real training, on images that train in a moment."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from helpers.searches import TINY, Search, load

BOUNDED = """
def space(trial, workload):
    lr = trial.suggest_float("peak_lr", 0.01, 1.0, log=True)
    trial.set_constraint("memory_bytes", at_most={bytes})
    return workload.config({{"optimizer": "sgd", "global_size": 32, "peak_lr": lr, "precise_bn": "off"}})
"""


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_two_objectives_end_with_their_front(tiny, tmp_path: Path) -> None:
    arguments = (*tiny, "--study", "s", "--trials", 3, "--max-epochs", 1)
    chosen = (
        "--objectives",
        "val_loss:min,gpu_hours:min",
        "--baseline",
        "val_loss=1e9",
    )  # trials this small learn little
    search = Search(*arguments, *chosen, cwd=tmp_path)
    assert search.end() == 0, search.stderr()
    text, study, folder = "".join(search.lines), load(tmp_path / "runs" / "s"), tmp_path / "runs" / "s"
    assert all(t.state == TrialState.COMPLETE and len(t.values) == 2 for t in study.trials)
    front = json.loads((folder / "pareto.json").read_text())["front"]
    assert sorted(row["trial"] for row in front) == sorted(t.number for t in study.best_trials)
    for row in front:
        trial = study.trials[row["trial"]]
        assert row["values"] == {"val_loss": trial.values[0], "gpu_hours": trial.values[1]}
        # The value is taken a moment before the trial's devices are given back: within a second of one device.
        assert trial.values[1] == pytest.approx(trial.user_attrs["gpu_hours"], abs=1 / 3600)
    lowest = min(study.trials, key=lambda t: t.values[0])
    assert json.loads((folder / "best.json").read_text()) == lowest.user_attrs["config"]
    assert "Pareto front" in text and f"Best: trial {lowest.number}, validation loss" in text
    epochs = pq.read_table(folder / "epochs.parquet").to_pylist()
    assert all(row["memory_bytes"] > 2**26 for row in epochs), "a process with torch has more than 64 MiB"


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_a_target_ends_trials_and_a_bound_that_nobody_keeps_makes_all_infeasible(
    tiny, tmp_path: Path, tiny_images: Path
) -> None:
    """The first target is below chance, so that each trial reaches it in its first epoch."""
    arguments = (*tiny, "--study", "s", "--trials", 2, "--max-epochs", 3, "--target", "val_top1=0.0001")
    search = Search(*arguments, cwd=tmp_path)
    assert search.end() == 0, search.stderr()
    study = load(tmp_path / "runs" / "s")
    for trial in study.trials:
        record = trial.user_attrs["epoch/00001"]
        seconds = sum(record[part] for part in ("train_s", "bn_s", "val_s", "checkpoint_s"))
        assert trial.state == TrialState.COMPLETE and trial.value == pytest.approx(seconds / 3600)
        assert trial.user_attrs["ended_because"] == "reached val_top1=0.0001 after epoch 1"
    assert "reached a validation top-1 of 0.0 % after 1 epoch" in "".join(search.lines)
    (tmp_path / "bounded.py").write_text(BOUNDED.format(bytes=2**20))
    arguments = ("--space", tmp_path / "bounded.py", "--data", tiny_images, *TINY, "--study", "t", "--trials", 2)
    search = Search(*arguments, "--max-epochs", 2, cwd=tmp_path)
    assert search.end() == 1, "no trial ran to its end"
    for trial in load(tmp_path / "runs" / "t").trials:
        assert trial.state == TrialState.PRUNED and len(trial.intermediate_values) == 1
        assert trial.user_attrs["infeasible"]["memory_bytes"] > 1 and trial.constraints["memory_bytes"] > 1
    assert "0 of 2 trials ran to their end, 0 stopped early, 2 infeasible" in "".join(search.lines)
