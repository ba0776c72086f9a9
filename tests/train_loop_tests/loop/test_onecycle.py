"""A training run with ``schedule.name=onecycle`` against torch's ``OneCycleLR``, stopped and resumed."""

from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.train import TrainingStopped
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt, changed

PEAK, FACTOR, STEPS = 0.2, 0.25, 12


def _torchs() -> list[list[tuple[float, float]]]:
    """(rate, momentum) of both groups in each step."""
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)], 1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [PEAK, FACTOR * PEAK], total_steps=STEPS)
    found = []
    for step in range(STEPS):
        found.append([(group["lr"], group["momentum"]) for group in optimizer.param_groups])
        optimizer.step()
        if step + 1 < STEPS:
            schedule.step()
    return found


@pytest.mark.parametrize("name", ["sgd", "lars", "lamb", "adamw"])
def test_each_step_has_torchs_rates_and_momenta_also_after_a_stop(name, built, tmp_path):
    seen: list[list[tuple[float, float]]] = []

    def before(it: torch.optim.Optimizer, *_: object) -> None:
        seen.append([(g["lr"], g["betas"][0] if "betas" in g else g["momentum"]) for g in it.param_groups])

    built.watch = lambda optimizer: optimizer.register_step_pre_hook(before)
    config = changed(
        CONFIG, schedule__name="onecycle", optimizer__name=name, optimizer__peak_lr=PEAK, no_decay_lr_factor=FACTOR,
        nesterov=False, optimizer__momentum=0.0,
    )  # fmt: skip
    with pytest.raises(TrainingStopped, match="in epoch 2 after step 1"):
        run(config, reporter=StopsAt(5), checkpoint_dir=tmp_path)
    run(config, checkpoint_dir=tmp_path)
    assert len(seen) == STEPS
    for ours, theirs in zip(seen, _torchs(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-12)


class Plain(torch.optim.Optimizer):
    """It has neither momentum nor betas."""

    def __init__(self, *_: Any) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {"lr": 0.1})


def test_an_optimizer_without_momentum_is_refused_with_the_way_out(built, monkeypatch):
    monkeypatch.setattr(assembly, "build_optimizer", Plain)
    rule = "moves the optimizer's momentum or beta1; got a group of Plain .*max_momentum=0"
    with pytest.raises(ConfigError, match=rule):
        run(changed(CONFIG, schedule__name="onecycle"))
