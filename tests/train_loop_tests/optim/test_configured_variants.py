"""LARC and LAMB's variants as the configuration has them, against float64 formulas after their sources."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError, OptimizerConfig, TrainConfig, parse_assignments
from bigbatch.train_loop.optim import build_optimizer, set_learning_rate

RATES = [0.5, 1.0, 1.5, 2.0, 1.0, 0.25]
SHAPES = {"matrix.weight": (3, 4), "matrix.bias": (3,), "norm.weight": (3,), "norm.bias": (3,)}
DECAYED = ("matrix.weight",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Linear(4, 3).double(), nn.LayerNorm(3).double()


def _gradients(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(10 + step)
    size = 4.0 if step % 2 else 0.05  # above and below a norm of 1
    return {name: size * rng.standard_normal(shape) for name, shape in SHAPES.items()}


def _trained(keys: dict[str, Any], scale: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Weights before and after six steps."""
    torch.manual_seed(3)
    model = Net()
    with torch.no_grad():
        model.matrix.weight[:] = torch.randn(3, 4).double()
        model.norm.bias[:] = 0.5
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerConfig(**keys))
    for step, rate in enumerate(RATES):
        set_learning_rate(optimizer, scale * rate)
        for name, p in model.named_parameters():
            p.grad = torch.tensor(_gradients(step)[name])
        optimizer.step()
    return before, {name: p.detach().numpy() for name, p in model.named_parameters()}


def norm(*arrays: np.ndarray) -> float:
    return math.sqrt(sum(float((a * a).sum()) for a in arrays))


# --- apex/parallel/LARC.py around torch.optim.SGD ---


@pytest.mark.parametrize("mode", ["clip", "trust"])
@pytest.mark.parametrize("lars_momentum", ["in", "out"])
def test_larc(mode: str, lars_momentum: str) -> None:
    """LARC is around SGD, so ``lars_momentum`` is of no effect. BatchNorm and biases have plain SGD here."""
    keys = {"name": "lars", "larc": mode, "trust_coefficient": 0.4, "lars_eps": 1e-8, "weight_decay": 0.02}
    before, after = _trained({**keys, "momentum": 0.9, "nesterov": False, "lars_momentum": lars_momentum}, 0.5)
    clipped = []
    for name, start in before.items():
        w, b = start.copy(), np.zeros_like(start)
        for step, rate in enumerate(RATES):
            g, lr = _gradients(step)[name], 0.5 * rate
            if name in DECAYED:
                adaptive = 0.4 * norm(w) / (norm(g) + norm(w) * 0.02 + 1e-8)
                clipped.append(adaptive > lr)
                g = (g + 0.02 * w) * (min(adaptive / lr, 1) if mode == "clip" else adaptive)
            b = 0.9 * b + g
            w = w - lr * b
        np.testing.assert_allclose(after[name], w, rtol=1e-12, atol=1e-13)
    assert any(clipped) and not all(clipped)


# --- csrc/multi_tensor_lamb.cu (mode 1, grad_averaging), DeepSpeed's bounds, NVLAMB's pre-normalisation ---


def _lamb(
    before: dict[str, np.ndarray],
    *,
    decay: float,
    use_nvlamb: bool = False,
    bias_correction: bool = True,
    low: float = 0.0,
    high: float = math.inf,
    pre_normalise: bool = False,
) -> dict[str, np.ndarray]:
    beta1, beta2, eps = 0.9, 0.99, 1e-6
    w = {name: value.copy() for name, value in before.items()}
    m, v = ({name: np.zeros_like(value) for name, value in before.items()} for _ in range(2))
    for step, rate in enumerate(RATES):
        grads = _gradients(step)
        total = norm(*grads.values()) if pre_normalise else 1.0
        for name, g in grads.items():
            own = decay if name in DECAYED else 0.0
            scaled = g / total
            m[name] = beta1 * m[name] + (1 - beta1) * scaled
            v[name] = beta2 * v[name] + (1 - beta2) * scaled * scaled
            c1, c2 = (1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)) if bias_correction else (1.0, 1.0)
            update = (m[name] / c1) / (np.sqrt(v[name] / c2) + eps) + own * w[name]
            ratio = 1.0
            if (use_nvlamb or own != 0) and norm(w[name]) != 0 and norm(update) != 0:
                ratio = min(max(norm(w[name]) / norm(update), low), high)
            w[name] = w[name] - 0.02 * rate * ratio * update
    return w


@pytest.mark.parametrize(
    ("keys", "reference"),
    [
        ({}, {}),
        ({"nvlamb": True}, {"use_nvlamb": True}),
        ({"bias_correction": False}, {"bias_correction": False}),
        ({"min_trust_ratio": 1.2}, {"low": 1.2}),
        ({"max_trust_ratio": 0.7}, {"high": 0.7}),
        ({"min_trust_ratio": 0.9, "max_trust_ratio": 1.1}, {"low": 0.9, "high": 1.1}),
        ({"pre_normalise": True}, {"pre_normalise": True}),
        (
            {"nvlamb": True, "pre_normalise": True, "bias_correction": False, "max_trust_ratio": 1.0},
            {"use_nvlamb": True, "pre_normalise": True, "bias_correction": False, "high": 1.0},
        ),
    ],
)
def test_lambs_variants(keys: dict[str, Any], reference: dict[str, Any]) -> None:
    before, after = _trained({"name": "lamb", "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.3, **keys}, 0.02)
    for name, expected in _lamb(before, decay=0.3, **reference).items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-11, atol=1e-12)
    if reference:  # the key does something here
        plain = _lamb(before, decay=0.3)
        assert any(np.abs(after[name] - plain[name]).max() > 1e-6 for name in before)


def test_with_nvlamb_the_parameters_without_decay_keep_their_own_rate() -> None:
    optimizer = build_optimizer(Net(), OptimizerConfig(name="lamb", nvlamb=True, no_decay_lr_factor=0.1))
    set_learning_rate(optimizer, 1.0)
    assert [(group["lr"], group["trust_ratio"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (1.0, True, 5e-5),
        (0.1, True, 0.0),
    ]


def test_the_keys_are_typed_as_any_other_and_bad_ones_are_refused() -> None:
    words = ["larc=clip", "min_trust_ratio=0.01", "max_trust_ratio=10", "nvlamb=true", "bias_correction=false"]
    config = TrainConfig().replace_keys(parse_assignments([*words, "pre_normalise=True"]))
    found = config.optimizer
    assert (found.larc, found.min_trust_ratio, found.max_trust_ratio) == ("clip", 0.01, 10.0)
    assert (found.nvlamb, found.bias_correction, found.pre_normalise) == (True, False, True)
    for bad, message in (
        ({"larc": "clipp"}, "optimizer.larc must be one of off, clip, trust; got 'clipp'. Did you mean 'clip'?"),
        ({"min_trust_ratio": -1.0}, "optimizer.min_trust_ratio must be >= 0"),
        ({"max_trust_ratio": math.inf}, "optimizer.max_trust_ratio must be >= 0"),
        ({"min_trust_ratio": 2.0, "max_trust_ratio": 1.0}, "min_trust_ratio must not exceed .*got 2 and 1. Write"),
    ):
        with pytest.raises(ConfigError, match=message):
            OptimizerConfig(**bad)
