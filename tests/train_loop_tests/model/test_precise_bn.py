"""Precise BatchNorm statistics against float64 moments of all activations at once."""

import copy
import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop.train import TrainingStopped
from bigbatch.train_loop.model import precise_bn
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt, changed, dropout_first, install, untimed

WORLD = World(0, 1, torch.device("cpu"))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.0),
        nn.Conv2d(5, 4, 3, bias=False), nn.BatchNorm2d(4, momentum=None), nn.Flatten(), nn.Linear(4 * 16, 2),
    )  # fmt: skip


def batches(count: int = 5) -> list[torch.Tensor]:
    """Micro-batches whose means differ much, so that the mean of variances is not the variance."""
    draws = torch.Generator().manual_seed(3)
    return [torch.randn(6, 3, 8, 8, generator=draws) * (1 + i) + 3 * i for i in range(count)]


def reference(model: Any, images: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and variance, for each BatchNorm, of its inputs over all batches, each normalised by its own."""
    xs = [x.double() for x in images]
    found = []
    for conv, bn in ((model[0], model[1]), (model[4], model[5])):
        xs = [F.conv2d(x, conv.weight.double()) for x in xs]
        everything = torch.cat(xs)
        found.append((everything.mean((0, 2, 3)), everything.var((0, 2, 3), correction=0)))
        normed = []
        for x in xs:
            mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
            normed.append((x - mean) / (var + bn.eps).sqrt())
        xs = [F.relu(x) for x in normed]
    return found


def test_statistics_are_the_populations() -> None:
    model = network()
    for bn in (model[1], model[5]):
        bn.running_mean.fill_(torch.nan)  # whatever was there before
    precise_bn.recompute_statistics(model, batches(), WORLD, model)
    for bn, (mean, var) in zip((model[1], model[5]), reference(model, batches()), strict=True):
        torch.testing.assert_close(bn.running_mean.double(), mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(bn.running_var.double(), var, rtol=1e-5, atol=1e-5)


def test_nothing_else_changes() -> None:
    model = network().eval()
    model[1].train()  # modes are each module's own
    model(batches(1)[0])
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    precise_bn.recompute_statistics(model, batches(), WORLD, model)
    for name, value in model.state_dict().items():
        if "running" not in name:
            assert torch.equal(value, before[name]), name
    assert [m.training for m in model.modules()] == modes
    assert (model[1].momentum, model[5].momentum) == (0.1, None)
    assert all(p.grad is None for p in model.parameters())
    assert not model[1]._forward_hooks


class Frozen(nn.BatchNorm2d):
    """Normalises with its statistics in training too, as fine-tuned networks do."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


class Counts(nn.Module):
    """Counts its passes, in place and with a new tensor."""

    passes: torch.Tensor
    others: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("others", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += 1.0
        self.others = self.others + 1.0
        return images


def test_frozen_statistics_and_what_other_layers_keep_stay() -> None:
    """The layers behind the frozen one see what it makes of its own statistics."""
    model = network()
    model[1] = Frozen(5)
    model[1].running_mean.fill_(0.3)
    model[1].running_var.fill_(4.0)
    model[3] = Counts()
    precise_bn.recompute_statistics(model.train(), batches(), WORLD, model)
    assert model[1].running_mean.tolist() == pytest.approx([0.3] * 5) and model[1].running_var.tolist() == [4.0] * 5
    assert (model[3].passes.item(), model[3].others.item(), model[1].momentum) == (0.0, 0.0, 0.1)
    xs = torch.cat([F.conv2d(x.double(), model[0].weight.double()) for x in batches()])
    inputs = F.conv2d(F.relu((xs - 0.3) / (4.0 + model[1].eps) ** 0.5), model[4].weight.double())
    torch.testing.assert_close(model[5].running_mean.double(), inputs.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)


def test_state_is_restored_after_an_error() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())

    def failing(images: object) -> None:
        model(images)
        raise MemoryError

    with pytest.raises(MemoryError):
        precise_bn.recompute_statistics(model.eval(), batches(), WORLD, failing)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model[1].momentum, model.training, len(model[1]._forward_hooks)) == (0.1, False, 0)


def test_layers_that_no_image_goes_through_keep_their_statistics() -> None:
    model = network()
    model[5].running_mean.fill_(7.0)
    precise_bn.recompute_statistics(model, batches(), WORLD, lambda images: model[:4](images))
    assert torch.equal(model[5].running_mean, torch.full((4,), 7.0))
    assert not torch.equal(model[1].running_mean, torch.zeros(5))


def test_model_without_batch_norm_reads_no_image() -> None:
    def images() -> Generator[torch.Tensor]:
        raise AssertionError("read")
        yield

    unread, model = images(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4))
    precise_bn.recompute_statistics(model, unread, WORLD, model)
    assert inspect.getgeneratorstate(unread) == inspect.GEN_CREATED


@pytest.mark.parametrize(
    ("stop_at", "changes"), [(4, {}), (12, {}), (2, {"ema_decay": 0.5, "global_size": 32})], ids=str
)
def test_a_run_that_stops_at_an_epochs_last_step_resumes_to_the_bit_with_dropout_before_batch_norm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop_at: int, changes: dict[str, Any]
) -> None:
    """Steps 4 and 12 are the last ones of epochs of 4 (2 of 2): the pass for BatchNorm is the next thing to come."""
    config = changed(CONFIG, **changes)
    built = install(monkeypatch.setattr, dropout_first)
    whole = run(config)
    want = built.model.state_dict()
    torch.manual_seed(99)
    with pytest.raises(TrainingStopped):
        run(config, reporter=(first := StopsAt(stop_at)), checkpoint_dir=tmp_path)
    torch.manual_seed(7)  # another process has other numbers
    assert untimed(first.records + run(config, checkpoint_dir=tmp_path)) == untimed(whole)
    assert want.keys() == built.model.state_dict().keys()
    assert all(torch.equal(value, want[name]) for name, value in built.model.state_dict().items())
