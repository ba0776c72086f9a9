"""Components of a user's own in a search: options, fingerprints, the check before Ray, and spaces that choose them."""

from pathlib import Path
from typing import Any

import pytest

from bigbatch.search_spaces.priors import OWN_SPREAD
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import Options
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.own_code import OWN_CODE, check_components, own_component_lines
from bigbatch.tune.plan.search_plan import SearchPlan
from helpers.refusals import refusal

OWN = """
import torch
import torch.nn.functional as F
from torch import nn

from beside import pooled

def net(workload, width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), *pooled(), nn.Linear(width, workload.num_classes))

def mean(outputs, targets, scale=1.0):
    return scale * F.cross_entropy(outputs, targets)

def broken(outputs, targets):
    return outputs.no_such_thing

def score(workload):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1))

def of_score(outputs, targets):
    return F.mse_loss(outputs[:, 0], targets.float())

def sgd(param_groups, lr, momentum=0.9):
    return torch.optim.SGD(param_groups, lr=lr, momentum=momentum)
"""
SPACE = '''
"""Widths and networks."""
def space(trial, workload):
    keys = {"model.name": trial.suggest_categorical("net", ["my.py:net", "resnet18"]), "batch": 128,
            "optimizer": "my.py:sgd", "lr": trial.suggest_float("lr", 1e-3, 1e-1, log=True),
            "data.image_size": trial.suggest_categorical("image_size", [16, 32])}
    if keys["model.name"] != "resnet18":
        keys["model.options.width"] = trial.suggest_int("model.options.width", 2, 6)
    return workload.config(keys)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.py").write_text(OWN)
    (tmp_path / "beside.py").write_text(
        "from torch import nn\ndef pooled():\n    return nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
    )
    (tmp_path / "space.py").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _plan(**options: Any) -> SearchPlan:
    return make_plan(SearchOptions(**{"trials": 2, "max_epochs": 2, **options}))


def test_options_name_components_that_every_configuration_has(folder: Path) -> None:
    plan = _plan(model="my.py:net", loss="my.py:mean", optimizer="my.py:sgd", set=("model.options.width=3",))
    config = plan.space(StandInTrial(None), plan.workload, plan.overrides)
    assert config.model.name == f"{folder}/my.py:net" and config.model.options == Options(width=3)
    assert config.loss == f"{folder}/my.py:mean" and config.optimizer.name == f"{folder}/my.py:sgd"
    assert config.label_smoothing == 0 and "label_smoothing" not in plan.ranges
    assert set(plan.own_code) == {f"{folder}/my.py:{name}" for name in ("net", "mean", "sgd")}
    assert plan.options.kept()["optimizer"] == f"{folder}/my.py:sgd"
    lines = dict(own_component_lines(plan))
    assert "no published rates of my.py:sgd are known: the range is broad" in lines["rates"]


def test_an_own_optimizer_has_a_broad_prior(folder: Path) -> None:
    plan = _plan(optimizer="my.py:sgd", model="resnet18", no_check=True)
    rate = next(one for name, one in plan.ranges.items() if name.startswith("peak_lr"))
    assert plan.workload.lr_spread == OWN_SPREAD
    assert rate.low < 1e-4 and rate.high > 0.5  # Adam's rates and SGD's
    assert "own_weight_decay" in plan.ranges and "one_minus_beta1" not in plan.ranges
    assert _plan(optimizer="lars", model="resnet18").workload.lr_spread == 16


def test_a_space_may_choose_networks_their_options_and_the_image_size(folder: Path) -> None:
    plan = _plan(space="space.py", no_check=True)
    assert plan.ranges["model.options.width"].conditions == {"net": ("my.py:net",)}
    assert plan.ranges["image_size"].choices == (16, 32)
    assert set(plan.own_code) == {f"{folder}/my.py:net", f"{folder}/my.py:sgd"}
    pinned = _plan(space="space.py", no_check=True, set=("model.options.width=5",))
    assert "model.options.width" not in pinned.ranges
    configs = [
        pinned.space(StandInTrial(None, {"net": net}), pinned.workload, pinned.overrides)
        for net in ("my.py:net", "resnet18")
    ]
    assert [config.model.options for config in configs] == [Options(width=5)] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "my.py:maen"}, "Did you mean 'mean'"),
        ({"loss": "crossentropy"}, "Did you mean 'cross_entropy'"),
        ({"loss": "my.py:mean", "set": ("smoothing=0.1",)}, "label_smoothing is for the built-in losses; got 0.1"),
        ({"loss": "my.py:mean", "set": ("loss=bce",)}, "a key is set once; got --loss and --set loss"),
        ({"set": ("loss_options.scale=2",)}, "loss_options are arguments of a function of your own"),
    ],
    ids=str,
)
def test_wrong_components_are_refused_in_one_line(folder: Path, options: dict[str, Any], words: str) -> None:
    model = "resnet18" if "model.options" in str(options) else "my.py:net"
    refusal(lambda: _plan(**{"model": model, **options}), words)


def test_broken_code_is_met_before_ray_starts_unless_no_check(folder: Path) -> None:
    with pytest.raises(OwnCodeError, match="(?s)the code of loss=.*line 15, in broken.*no_such_thing"):
        _plan(model="my.py:net", loss="my.py:broken")
    assert _plan(model="my.py:net", loss="my.py:broken", no_check=True).own_code


def test_changed_code_of_a_resumed_study_is_refused_until_it_is_accepted(folder: Path) -> None:
    plan = _plan(model="my.py:net", loss="my.py:mean")
    stored = {OWN_CODE: dict(plan.own_code)}
    check_components(plan, stored)
    (folder / "beside.py").write_text((folder / "beside.py").read_text() + "\n# another text\n")
    changed = _plan(model="my.py:net", loss="my.py:mean")
    said = "a study goes .*my.py:mean' and 1 more has changed.*Restore.*or write --accept-changed-code.$"
    refusal(lambda: check_components(changed, stored), said)
    check_components(_plan(model="my.py:net", loss="my.py:mean", accept_changed_code=True), stored)
    check_components(changed, {})  # a study of an earlier version
