"""An arm of timm that the installed version does not have is left out of a benchmark, with a word."""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.paths import ROOT


class OldLars(torch.optim.SGD):
    """With the arguments of timm 1.0.22's ``Lars``, as far as they matter: no ``foreach``."""

    def __init__(self, params: Any, lr: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(params, lr, momentum)


class OldLamb(torch.optim.SGD):
    """The same of ``Lamb``."""

    def __init__(self, params: Any, lr: float = 1e-3, max_grad_norm: float | None = 1.0) -> None:
        super().__init__(params, lr)


class OldTask:
    """As timm.task before it had ``criterion_kwargs``."""

    def __init__(self, model: object, criterion: object, device: object = None, verbose: bool = True) -> None:
        raise AssertionError("the benchmark gives criterion_kwargs")


@pytest.fixture
def old_timm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """timm 1.0.22 as far as the benchmarks use it; it has no ``timm.task``."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    timm, optim, utils = (types.ModuleType(name) for name in ("timm", "timm.optim", "timm.utils"))
    vars(timm).update(__version__="1.0.22", optim=optim, utils=utils)
    vars(optim).update(Lars=OldLars, Lamb=OldLamb, create_optimizer_v2=lambda model, **options: None)
    for module in (timm, optim, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "timm.task", raising=False)
    return timm


def test_optimizers_that_timm_does_not_have_are_left_out(
    old_timm: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import optimizer_step

    def build(make: Any, device: str, network: str) -> object:
        return make([{"params": [torch.nn.Parameter(torch.ones(3, 3))], "weight_decay": 0.0}])

    monkeypatch.setattr(optimizer_step, "build", build)
    monkeypatch.setattr(optimizer_step, "step_s", lambda optimizer, device: 1.0)
    names = set(optimizer_step.measure("cpu", 2, "resnet18"))
    assert {name for name in names if "timm" in name} == {"timm_lars", "timm_lamb", "timm_lamb_noclip"}
    assert {"lars", "lamb", "sgd_fused", "noise_scale"} <= names
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["timm_lars_foreach", "timm_lamb_foreach"]
    assert all("is left out: timm 1.0.22 does not have it" in line and "foreach" in line for line in said)


@pytest.mark.parametrize("task", [None, OldTask])
def test_timms_loop_is_left_out_where_it_has_no_such_task(
    old_timm: types.ModuleType,
    task: type | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import train_throughput

    if task is not None:
        tasks = types.ModuleType("timm.task")
        vars(tasks).update(ClassificationTask=task)
        monkeypatch.setitem(sys.modules, "timm.task", tasks)
    for name in ("our_arm", "torchvision_arm"):
        monkeypatch.setattr(train_throughput, name, lambda *_: None)
    monkeypatch.setattr(train_throughput, "network", lambda *_: torch.nn.Linear(2, 2))
    arms = train_throughput.arms_here(argparse.Namespace(device="cpu"), Path(), 2)
    assert [*arms] == ["ours", "torchvision"]
    assert "timm is left out: timm 1.0.22 does not have it" in capsys.readouterr().err


def test_an_error_of_our_own_arm_is_none_of_timms(old_timm: types.ModuleType) -> None:
    import optimizer_step

    def broken() -> None:
        raise TypeError("unexpected keyword argument")

    with pytest.raises(TypeError, match="unexpected"):
        optimizer_step.present({"lars": broken})
