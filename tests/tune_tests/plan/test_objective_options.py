"""``--objective``, ``--target`` and the bounds of a space, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

OWN = """
def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0)}


def train(config, report, resume):
    report(epoch=1, acc=config["lr"])
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "val_top"}, "Did you mean 'val_top1'"),
        ({"objective": "val_loss", "target": "val_top1=0.9"}, "got --objective and --target. Keep one of them."),
        ({"objective": "val_loss,gpu_hours"}, "Write --objectives val_loss,gpu_hours."),
        ({"objective": "val_top1=0.9"}, "Write --target val_top1=0.9."),
        ({"target": "val_top1"}, "--target takes METRIC=VALUE"),
        ({"target": "val_top5=0.9"}, "names a metric that each trial reports; got 'val_top5'"),
        ({"objectives": "val_top1,gpu_hours", "stopping": "asha"}, "Write --stopping none."),
        ({"objectives": "val_top1,gpu_hours", "strategy": "curves"}, "Write --strategy tpe."),
    ],
)
def test_bad_input_meets_one_line_that_names_the_fix(given, said):
    assert said in refusal(lambda: make_plan(SearchOptions(space="smoke", **given)))


@pytest.mark.parametrize(
    "given", [{"objective": "val_top1:max"}, {"target": "val_top1=0.9"}, {"objectives": "val_loss,train_top1"}], ids=str
)
def test_top_1_is_no_objective_where_targets_are_no_classes(own: Path, given: dict[str, Any]) -> None:
    own.write_text(
        "import torch\nfrom torch import nn\n"
        "def data():\n    return [[(torch.ones(3), 0.5)] * 32, [(torch.ones(3), 0.5)] * 8]\n"
        "def net(workload):\n    return nn.Linear(3, 1)\n"
        "def mse(outputs, targets):\n    return ((outputs[:, 0] - targets) ** 2).mean()\n"
    )
    mine: dict[str, Any] = {"data": "own.py:data", "model": "own.py:net", "loss": "own.py:mse"}
    assert make_plan(SearchOptions(space="smoke", **mine)).objectives.text == "val_loss:min"
    with pytest.raises(ConfigError, match="_top1 needs targets that are classes.* Write --objective val_loss:min"):
        make_plan(SearchOptions(space="smoke", **mine, **given))


def test_a_resumed_study_keeps_its_objective_and_refuses_another():
    plan = make_plan(SearchOptions(space="smoke", study="s", objective="val_loss"))
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    assert make_plan(SearchOptions(study="s", resume=True)).objectives.text == "val_loss:min"
    assert make_plan(SearchOptions(study="s", resume=True, objective="val_loss:min")).objectives.text == "val_loss:min"
    with pytest.raises(ConfigError, match=r"the objective was val_loss:min; got val_top1=0\.9\. Leave it out"):
        make_plan(SearchOptions(study="s", resume=True, target="val_top1=0.9"))


def test_several_objectives_stop_no_trial_and_have_no_frontier():
    plan = make_plan(SearchOptions(objectives="val_top1:max,gpu_hours:min", strategy="qmc"))
    assert plan.stopping == "none" and plan.frontier is None
    assert plan.to_dict()["objective"] == "val_top1:max,gpu_hours:min"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("'epoch_z', at_most=60", "Did you mean 'epoch_s'"),
        ("'val_top1', at_least=0.5", "bounds what a trial costs; got 'val_top1'"),
        ("'epoch_s'", "has no bound; write at_most"),
        ("'epoch_s', at_most=1, at_least=2", "needs at_least <= at_most"),
    ],
)
def test_a_bound_that_means_nothing_is_refused(own, call, said):
    own.write_text(
        "def space(trial, workload):\n"
        "    lr = trial.suggest_float('peak_lr', 0.1, 1.0)\n"
        f"    trial.set_constraint({call})\n"
        "    return workload.config({'optimizer': 'sgd', 'global_size': 64, 'peak_lr': lr})\n"
    )
    assert said in refusal(lambda: make_plan(SearchOptions(space="own.py")))
