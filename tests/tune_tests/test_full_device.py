"""Whole searches whose trials meet a full device, or die: what the study says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.runs.run import DIVERGED_ATTR, FAILURE_ATTR, HEALED_ATTR
from helpers.full_device import small_device
from helpers.paths import TUNE
from helpers.searches import load


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_trials_heal_in_the_same_trial_at_the_same_global_batch(run_command, tmp_path: Path, tiny, workers) -> None:
    """On the last rank more than 4 images are too many. Two workers: all start again, in the same trial."""
    arguments = (*tiny, "--trials", 2, "--max-epochs", 2, "--study", "s", "--workers", workers)
    arguments += ("--strategy", "random", "--stopping", "none")
    env = small_device(tmp_path / "site", 4, rank=workers - 1)
    done = run_command(TUNE, *arguments, timeout_s=500, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = load(tmp_path / "runs" / "s").trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    for trial in trials:
        batch = TrainConfig.from_dict(trial.user_attrs["config"]).batch
        split = batch.split(workers)
        assert (split.global_size, split.micro_size) == (16, 4)
        sizes = [one["micro_size"] for one in trial.user_attrs[HEALED_ATTR]]
        assert sizes == [8, 4][workers - 1 :] and not {DIVERGED_ATTR, FAILURE_ATTR} & trial.user_attrs.keys()
    assert "The micro-batch is now 4" in done.stdout
    best = json.loads((tmp_path / "runs" / "s" / "best.json").read_text())
    # Trials this small learn nothing, and then the configuration is a part of best.json.
    assert TrainConfig.from_dict(best.get("config", best)).batch.split(workers).micro_size == 4


@pytest.mark.slow
def test_what_fits_at_no_micro_batch_fails_with_the_reason_and_is_not_diverged(run_command, tmp_path, tiny) -> None:
    arguments = (*tiny, "--trials", 1, "--max-epochs", 1, "--study", "s", "--strategy", "random")
    done = run_command(TUNE, *arguments, timeout_s=400, **small_device(tmp_path / "site", 0))
    assert done.returncode == 1, done.stdout + done.stderr
    (trial,) = load(tmp_path / "runs" / "s").trials
    assert trial.user_attrs[FAILURE_ATTR] == "device memory" and DIVERGED_ATTR not in trial.user_attrs
    assert "too small for micro-batches of one image" in trial.user_attrs["ended_because"]
    assert trial.user_attrs[HEALED_ATTR][-1]["micro_size"] == 1
