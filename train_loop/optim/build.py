"""From a model and an ``OptimizerConfig`` to an optimizer with its parameter groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from train_loop.config import OptimizerConfig
from train_loop.optim.lamb import LAMB
from train_loop.optim.lars import LARS

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # every BatchNorm (also Sync, Lazy) and InstanceNorm
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


LR_FACTOR = "lr_factor"
"""A group's own factor of the learning rate."""


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """``rate`` times each group's own factor, which checkpoints from before there was one lack."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(LR_FACTOR, 1.0)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: with weight decay and trust ratio, and without either.

    Without: all parameters of normalisation layers, and every tensor of at most one dimension
    (biases, scales). Found by module type and shape, never by name: torchvision's ``downsample.1``
    is a BatchNorm. A parameter that several modules share occurs once, and is a norm layer's if
    any of them is one. Groups follow the model's parameter order; an empty one is left out.
    """
    of_norms = {
        id(p) for module in model.modules() if isinstance(module, NORM_LAYERS) for p in module.parameters(recurse=False)
    }
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    for p in model.parameters():  # yields shared parameters once
        if p.requires_grad:
            (no_decay if p.ndim <= 1 or id(p) in of_norms else decay).append(p)
    groups: list[dict[str, Any]] = [
        {"params": decay, "weight_decay": weight_decay, "trust_ratio": True},
        {"params": no_decay, "weight_decay": 0.0, "trust_ratio": False},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that ``config`` describes, at its peak learning rate; each group's ``LR_FACTOR``
    is what ``set_learning_rate`` multiplies it by.

    Raises ValueError where the model has no trainable parameter.
    """
    groups = parameter_groups(model, config.weight_decay)
    for group in groups:
        group[LR_FACTOR] = 1.0 if group["trust_ratio"] else config.no_decay_lr_factor
    if not groups:
        raise ValueError(f"an optimizer needs trainable parameters; got none in {type(model).__name__}")
    if config.name in ("sgd", "adamw"):  # torch's own know no trust ratio
        groups = [{key: value for key, value in group.items() if key != "trust_ratio"} for group in groups]
    betas = (config.beta1, config.beta2)
    match config.name:
        case "sgd":
            return torch.optim.SGD(
                groups, lr=config.peak_lr, momentum=config.momentum, nesterov=config.nesterov, foreach=True
            )
        case "adamw":
            return torch.optim.AdamW(groups, lr=config.peak_lr, betas=betas, eps=config.eps, foreach=True)
        case "lamb":
            return LAMB(groups, lr=config.peak_lr, betas=betas, eps=config.eps)
        case "lars":
            return LARS(
                groups,
                lr=config.peak_lr,
                momentum=config.momentum,
                trust_coefficient=config.trust_coefficient,
                nesterov=config.nesterov,
                momentum_convention=config.lars_momentum,
                eps=config.lars_eps,
            )
    raise ValueError(f"optimizer.name must be one of sgd, lars, lamb, adamw; got {config.name!r}")
