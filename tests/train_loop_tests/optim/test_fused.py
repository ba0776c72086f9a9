"""torch's own SGD and AdamW, fused: against float64 formulas written out here, and where they must not be fused."""

import copy
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import OptimizerConfig
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.optim import build_optimizer, set_learning_rate
from bigbatch.train_loop.reporter import ListReporter
from helpers.tiny_training import CONFIG, changed, install

Array = npt.NDArray[np.float64]
RATES = [0.1, 0.3, 0.2, 0.05, 0.0, 0.4]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
SGDS = [
    OptimizerConfig(name="sgd", momentum=m, nesterov=n, weight_decay=wd, no_decay_lr_factor=0.5)
    for m, n, wd in ((0.9, True, 1e-2), (0.9, False, 0.0), (0.0, False, 1e-2))
]
ADAMWS = [OptimizerConfig(name="adamw", beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=wd) for wd in (0.0, 0.3)]


def network(layout: torch.memory_format = torch.contiguous_format, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1), nn.Flatten(), nn.Linear(5, 4))
    return model.to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]


def gradients(model: nn.Module, seed: int) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=draws, dtype=torch.float64) for p in model.parameters()]


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        set_learning_rate(optimizer, RATES[step])
        for p, g in zip(model.parameters(), gradients(model, step), strict=True):
            p.grad = torch.empty_like(p).copy_(g)
        optimizer.step()


def sgd_reference(w: Array, grads: list[Array], config: OptimizerConfig, wd: float, factor: float) -> Array:
    """Sutskever et al. 2013 as torch documents it: L2 decay, the rate outside of the momentum."""
    b = np.zeros_like(w)
    for g, rate in zip(grads, RATES, strict=True):
        g = g + wd * w
        b = config.momentum * b + g
        w = w - factor * rate * (g + config.momentum * b if config.nesterov else b)
    return w


def adamw_reference(w: Array, grads: list[Array], config: OptimizerConfig, wd: float, factor: float) -> Array:
    """Loshchilov & Hutter 2019, Alg. 2; the decay by the rate, as torch has it."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(grads, RATES, strict=True), 1):
        w = w - factor * rate * wd * w
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g * g
        w = w - factor * rate * (m / (1 - config.beta1**t)) / (np.sqrt(v / (1 - config.beta2**t)) + config.eps)
    return w


@pytest.mark.parametrize("config", [*SGDS, *ADAMWS], ids=lambda c: f"{c.name} {c.momentum} {c.weight_decay}")
@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
def test_fused_steps_are_the_formulas(config, layout, dtype, tolerance):
    model = network(layout, dtype)
    before = [p.detach().double().numpy().copy() for p in model.parameters()]
    optimizer = build_optimizer(model, config)
    assert all(group["fused"] and not group["foreach"] for group in optimizer.param_groups)
    take_steps(model, optimizer, range(len(RATES)))
    reference = sgd_reference if config.name == "sgd" else adamw_reference
    for number, (p, w) in enumerate(zip(model.parameters(), before, strict=True)):
        decays = p.ndim > 1
        wd, factor = (config.weight_decay, 1.0) if decays else (0.0, config.no_decay_lr_factor)
        grads = [gradients(model, step)[number].numpy() for step in range(len(RATES))]
        want = reference(w, grads, config, wd, factor)
        np.testing.assert_allclose(p.detach().double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
@pytest.mark.parametrize("layouts", [LAYOUTS, LAYOUTS[::-1]], ids=["rows, channels", "channels, rows"])
def test_gradients_and_state_may_lie_otherwise_than_weights(name: str, layouts: list[torch.memory_format]) -> None:
    """torch's fused kernels go by address: they would mix up the elements and say nothing."""
    config = OptimizerConfig(name=name, weight_decay=1e-2)
    model, plain = network(layouts[0]), network()
    optimizer, reference = build_optimizer(model, config), build_optimizer(plain, config)
    for step in range(4):
        take_steps(plain, reference, range(step, step + 1))
        set_learning_rate(optimizer, RATES[step])
        for p, g in zip(model.parameters(), gradients(model, step), strict=True):
            p.grad = g.float().contiguous(memory_format=layouts[1] if p.ndim == 4 else torch.contiguous_format)
        optimizer.step()
        if step == 1:  # a checkpoint whose tensors lie as the other layout's do
            saved = copy.deepcopy(optimizer.state_dict())
            for state in saved["state"].values():
                for key, value in state.items():
                    if value.ndim == 4:
                        state[key] = value.contiguous(memory_format=layouts[1])
            optimizer.load_state_dict(saved)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


class Holes(nn.Module):
    """A parameter whose elements do not lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6)[:, ::2])


WITHOUT_FUSED = {
    "holes": Holes,
    "complex": lambda: nn.Linear(3, 2, dtype=torch.complex64),
    "meta": lambda: nn.Linear(3, 2, device="meta"),
}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("build", WITHOUT_FUSED.values(), ids=WITHOUT_FUSED)
def test_where_fused_steps_would_be_wrong_or_refused_the_multi_tensor_ones_are_taken(name: str, build: Any) -> None:
    model = build()
    optimizer = build_optimizer(model, OptimizerConfig(name=name, weight_decay=0.0, momentum=0.9))
    assert all(group["foreach"] and not group["fused"] for group in optimizer.param_groups)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, q in zip(model.parameters(), before, strict=True):
        if not p.is_meta:
            assert ((p - q).abs() > 0).all()


def test_a_parameter_may_get_its_first_gradient_late_and_a_sparse_one() -> None:
    """Stochastic depth leaves layers out; torch's fused SGD alone fails at the second of these steps."""
    config = OptimizerConfig(name="sgd", momentum=0.9, nesterov=False, weight_decay=0.0, peak_lr=1.0)
    embedding = nn.Embedding(3, 2, sparse=True)
    for model, late in ((nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)), 1), (embedding, 0)):
        optimizer = build_optimizer(model, config)
        for step in range(3):
            for number, p in enumerate(model.parameters()):
                p.grad = None if number == late and step == 0 else torch.ones_like(p)
                if model is embedding and p.grad is not None:
                    p.grad = p.grad.to_sparse(1)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            for number, (p, q) in enumerate(zip(model.parameters(), before, strict=True)):
                taken = step if number == late else step + 1
                torch.testing.assert_close(q - p, torch.full_like(p, sum(0.9**t for t in range(taken))))


def test_a_sparse_gradient_that_overflows_is_left_out() -> None:
    """A scaler hands the first step to the optimizer, for it is fused; torch's step that is not fused refuses it."""
    embedding = nn.Embedding(3, 2, sparse=True)
    optimizer = build_optimizer(embedding, OptimizerConfig(name="sgd", nesterov=False, weight_decay=0.0, peak_lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = embedding.weight.detach().clone()
    for overflows in (True, False, True):
        embedding.weight.grad = scaler.scale(torch.ones_like(before)).to_sparse(1)
        if overflows:
            embedding.weight.grad = embedding.weight.grad * math.inf
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(before - embedding.weight.detach(), torch.ones_like(before))


def rounds(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state as a checkpoint file brings it back."""
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location="cpu", weights_only=True)


@pytest.mark.parametrize("config", [SGDS[0], ADAMWS[1]], ids=lambda c: c.name)
@pytest.mark.parametrize(("before", "now"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_checkpoint_goes_on_whether_it_or_the_run_is_fused(config, before, now, steps):
    model, whole = network(), network()
    take_steps(whole, build_optimizer(whole, config), range(len(RATES)))
    take_steps(model, first := build_optimizer(model, config, not before), range(steps))
    second = build_optimizer(model, config, not now)
    second.load_state_dict(rounds(first))
    assert [(group["fused"], group["foreach"]) for group in second.param_groups] == [(now, not now)] * 2
    take_steps(model, second, range(steps, len(RATES)))
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=1e-6)
    if before and now:
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), whole.parameters(), strict=True))


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["off", "bf16", "fp16"])
def test_a_run_is_fused_unless_a_gradient_scaler_is_in_use_on_a_cpu(
    name: str, precision: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch.setattr)
    config = changed(CONFIG, optimizer__name=name, precision=precision)
    run = assembly.set_up(config, ListReporter(), CheckpointFolder(None, 0.0), torch.device(device))
    assert run.scaler.is_enabled() is (precision == "fp16")
    assert {group["fused"] for group in run.optimizer.param_groups} == {precision != "fp16" or device == "cuda"}
