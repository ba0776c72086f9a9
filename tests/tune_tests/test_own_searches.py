"""Searches with parts of a user's own on a real Ray: killed, resumed, and refused."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from helpers.paths import ROOT
from helpers.processes import wait_gone
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


@pytest.mark.slow
def test_a_killed_search_over_own_components_goes_on_and_other_code_is_refused(folder: Path) -> None:
    words = ("--study", "s", "--trials", 2, "--max-epochs", 30, "--batch", 128, "--stopping", "none")
    options = ("--set", "model.options.width=8", "loss_options.gamma=1.5")
    search = Search(*COMPONENTS, *words, *options, cwd=folder)
    search.wait_for(r"epoch 3/30")
    search.process.kill()
    search.end()
    wait_gone(search.ray_folder)
    study = folder / "runs" / "s"
    known = {t.number: len(t.intermediate_values) for t in load(study).trials}
    assert sum(known.values()) >= 3
    fingerprints = json.loads((study / "study.json").read_text())["own_code"]
    assert set(fingerprints) == {f"{folder}/my.py:{name}" for name in ("net", "focal", "adam")}

    (folder / "beside.py").write_text("from torch import nn\ndef head(n, k):\n    return nn.Linear(n, k, bias=False)\n")
    refused = Search("--resume", "--study", "s", cwd=folder)
    assert refused.end() == 2 and "--accept-changed-code" in refused.stderr()
    assert refused.stderr().count("\n") == 1 and "Traceback" not in refused.stderr()

    (folder / "beside.py").write_text("from torch import nn\ndef head(n, k):\n    return nn.Linear(n, k)\n")
    again = Search("--resume", "--study", "s", cwd=folder)
    assert again.end() == 0, again.stderr()
    trials = load(study).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    assert all(len(t.intermediate_values) == 30 for t in trials)
    for config in (t.user_attrs["config"] for t in trials):
        assert config["model"]["options"] == {"width": 8} and config["loss"] == f"{folder}/my.py:focal"
    assert max(t.value for t in trials) > 0.5  # chance is 0.1


FILE = ROOT / "examples" / "segmentation.py"
OWN_DATA = ("--data", f"{FILE}:data", "--model", f"{FILE}:net", "--loss", f"{FILE}:dice", "--metric", f"{FILE}:miou")


@pytest.mark.exhaustive
def test_a_killed_search_for_a_metric_of_ones_own_goes_on(tmp_path: Path) -> None:
    words = ("--objective", "val_miou:max", "--study", "s", "--trials", 2, "--max-epochs", 20, "--batch", 32)
    search = Search(*OWN_DATA, *words, "--stopping", "none", "--set", "data.options.size=16", cwd=tmp_path)
    search.wait_for(r"epoch 2/20")
    search.process.kill()
    search.end()
    wait_gone(search.ray_folder)
    study = tmp_path / "runs" / "s"
    before = {t.number: t.intermediate_values for t in load(study).trials}
    assert any(before.values())

    again = Search("--resume", "--study", "s", cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    trials = [t for t in load(study).trials if t.state != TrialState.WAITING]  # published recipes that had no turn
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    rows = pq.read_table(study / "epochs.parquet").to_pylist()
    for trial in trials:
        own = [row for row in rows if row["trial"] == trial.number]
        assert [row["epoch"] for row in own] == [*range(1, 21)]
        miou = [dict(row["metrics"])["val_miou"] for row in own]
        assert trial.value == miou[-1] and trial.intermediate_values == dict(enumerate(miou, start=1))
        assert before.get(trial.number, {}).items() <= trial.intermediate_values.items()
        assert {row["val_top1"] for row in own} == {None}
    assert max(t.value for t in trials) > 0.33  # a third: everything is background
    assert "validation miou" in "\n".join(again.lines)
