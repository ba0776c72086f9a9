"""Training on a data set of a user's own: the weights of a loop by hand, and those of a run that never stopped."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.loop import assembly
from helpers.loop_references import run
from helpers.own_sets import write_points
from helpers.point_net import PointNet
from helpers.tiny_training import StopsAt, untimed


def configured(word: str, **keys: object) -> TrainConfig:
    return TrainConfig().replace_keys(
        {
            "data.name": word, "data.loader.workers": 0, "epochs": 3, "seed": 4, "batch.global_size": 8,
            "optimizer.momentum": 0.0, "optimizer.nesterov": False, "optimizer.weight_decay": 0.0,
            "schedule.name": "constant", "optimizer.peak_lr": 0.3, **keys,
        }
    )  # fmt: skip


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that runs have built."""
    models: list[nn.Module] = []

    def build(*_: object) -> nn.Module:
        models.append(PointNet())
        return models[-1]

    monkeypatch.setattr(assembly, "build_model", build)
    return models


def test_the_weights_are_those_of_a_loop_written_by_hand(tmp_path: Path, built: list[nn.Module]) -> None:
    records = run(configured(write_points(tmp_path), **{"data.options": {"augment": False}}))
    namespace: dict[str, object] = {}
    exec((tmp_path / "own_points.py").read_text(), namespace)
    assert inspect.isfunction(namespace["points"])
    items, val = namespace["points"](augment=False)
    torch.manual_seed(4)
    net = PointNet()

    def batch(rows: list[int], of: object) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        found = [of[row] for row in rows]  # type: ignore[index]
        points = torch.stack([torch.as_tensor(i["points"]).float() for i, _ in found])
        grid, targets = torch.stack([i["grid"] for i, _ in found]), torch.tensor([t for _, t in found])
        return {"points": points, "grid": grid}, targets

    for epoch in range(3):
        order = np.random.default_rng([4, epoch, 0]).permutation(50)
        for step in range(50 // 8):
            inputs, targets = batch(order[8 * step : 8 * step + 8].tolist(), items)
            loss = F.cross_entropy(net(inputs), targets)
            net.zero_grad()
            loss.backward()
            with torch.no_grad():
                for weight in net.parameters():
                    assert weight.grad is not None
                    weight.sub_(0.3 * weight.grad)
    for ours, theirs in zip(built[0].parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    inputs, targets = batch(list(range(21)), val)
    logits = net(inputs).detach()
    assert records[-1].val_loss == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-4)
    assert records[-1].val_top1 == pytest.approx((logits.argmax(1) == targets).float().mean().item())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_stops_within_an_epoch_ends_as_one_that_never_stopped(tmp_path, built, workers):
    """With the augmentation of all generators, and other loader processes after the stop."""
    config = configured(write_points(tmp_path))
    whole = run(config, checkpoint_dir=tmp_path / "whole")
    with pytest.raises(TrainingStopped):
        run(config, reporter=StopsAt(9), checkpoint_dir=tmp_path / "parts")
    other = config.replace_keys({"data.loader.workers": workers, "data.loader.pin_memory": False})
    rest = untimed(run(other, checkpoint_dir=tmp_path / "parts"))
    assert [r["epoch"] for r in rest] == [2, 3]
    assert [{**r, "loader_processes": 0} for r in rest] == untimed(whole)[1:]
    for one, other in zip(built[0].parameters(), built[-1].parameters(), strict=True):
        assert torch.equal(one, other)
