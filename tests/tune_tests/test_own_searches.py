"""Searches with parts of a user's own on a real Ray: killed, resumed, and refused."""

import json
import os
import signal
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.runs.run import CONTINUES_ATTR, PAUSED_ATTR, epoch_records, is_paused
from helpers.searches import Search, load

OWN = """
import torch
import torch.nn.functional as F
from torch import nn
from beside import head

def net(workload, width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                         nn.Flatten(), head(16 * width, workload.num_classes))

def focal(outputs, targets, gamma=2.0):
    entropy = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-entropy).exp()) ** gamma * entropy).mean()

def adam(param_groups, lr, beta=0.9):
    return torch.optim.AdamW(param_groups, lr=lr, betas=(beta, 0.999))
"""
COMPONENTS = ("--model", "my.py:net", "--loss", "my.py:focal", "--optimizer", "my.py:adam", "--confirm", "none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("from torch import nn\ndef head(n, k):\n    return nn.Linear(n, k)\n")
    return tmp_path


EPOCHS = 10
PAUSING = ("--strategy", "random", "--stopping", "look", "--trials", 4, "--max-epochs", EPOCHS)
"""Trials pause after a tenth of their run, or after their warmup."""


def trials_by_kind(folder: Path) -> tuple[list[optuna.trial.FrozenTrial], list[optuna.trial.FrozenTrial]]:
    """The paused trials, and the continuations."""
    trials = load(folder).trials
    return [t for t in trials if is_paused(t)], [t for t in trials if CONTINUES_ATTR in t.user_attrs]


def check_continuations(folder: Path) -> None:
    """Each continuation has the parameters, the configuration and the first epochs of the trial that it continues."""
    paused, continuations = trials_by_kind(folder)
    by_number = {t.number: t for t in paused}
    assert continuations and all(t.state == TrialState.COMPLETE for t in continuations)
    assert len({t.user_attrs[CONTINUES_ATTR] for t in continuations}) == len(continuations), "none is continued twice"
    for trial in continuations:
        first = by_number[trial.user_attrs[CONTINUES_ATTR]]
        assert trial.params == first.params and trial.user_attrs["config"] == first.user_attrs["config"]
        before, after = epoch_records(first), epoch_records(trial)
        assert [r["epoch"] for r in after] == list(range(1, EPOCHS + 1))
        assert [r["val_loss"] for r in after[: len(before)]] == [r["val_loss"] for r in before], "trained only once"
        assert after[len(before)]["resumed_from_epoch"] is not None, "from the checkpoint of the pause"
    for trial in paused:
        assert trial.user_attrs[PAUSED_ATTR] == len(epoch_records(trial)) < EPOCHS


@pytest.mark.slow
def test_a_search_over_own_components_that_is_killed_while_trials_are_paused_goes_on_and_other_code_is_refused(
    folder: Path,
) -> None:
    options = ("--study", "s", "--batch", 128, "--set", "model.options.width=8", "loss_options.gamma=1.5")
    search = Search(*COMPONENTS, *PAUSING, *options, cwd=folder)
    search.wait_for(r"paused at", count=2)
    os.killpg(search.process.pid, signal.SIGKILL)
    search.process.wait()
    study = folder / "runs" / "s"
    fingerprints = json.loads((study / "study.json").read_text())["own_code"]
    assert set(fingerprints) == {f"{folder}/my.py:{name}" for name in ("net", "focal", "adam")}

    beside = (folder / "beside.py").read_text()
    (folder / "beside.py").write_text(beside.replace("(n, k)\n", "(n, k, bias=False)\n"))
    refused = Search("--resume", "--study", "s", cwd=folder)
    assert refused.end() == 2 and "--accept-changed-code" in refused.stderr()
    assert refused.stderr().count("\n") == 1 and "Traceback" not in refused.stderr()

    (folder / "beside.py").write_text(beside)
    again = Search("--resume", "--study", "s", cwd=folder)
    assert again.end() == 0, again.stderr()
    check_continuations(study)
    text = "".join(search.lines + again.lines)
    assert "paused after epoch" in text and "continues trial" in text
    assert not list((study / "logs").glob("*.pause")), "no request is left"
    trials = load(study).trials
    for config in (t.user_attrs["config"] for t in trials):
        assert config["model"]["options"] == {"width": 8} and config["loss"] == f"{folder}/my.py:focal"
