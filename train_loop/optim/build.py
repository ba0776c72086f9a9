"""Build an optimizer with its parameter groups from a model and an ``OptimizerConfig``."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError, OptimizerConfig
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.optim.fused import begin_momentum, can_fuse, keep_implementation
from bigbatch.train_loop.optim.lamb import LAMB
from bigbatch.train_loop.optim.lars import LARS
from bigbatch.train_loop.optim.layerwise import ParamGroup
from bigbatch.train_loop.plugins.registry import loaded, users_code

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # every BatchNorm (also Sync, Lazy) and InstanceNorm
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


WEIGHTED_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)
"""Layers whose weights are matrices, even if a dimension is 1."""

LR_FACTOR = "lr_factor"
"""A group's own factor of the learning rate."""


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set each group's rate to ``rate`` times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(LR_FACTOR, 1.0)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[ParamGroup]:
    """Trainable parameters in two groups: with weight decay and trust ratio, and without either.

    The second group has all parameters of normalisation layers, and every tensor of at most one dimension (biases,
    scales). It also has scales with one number per channel that are stored as ``[C, 1, 1]`` (ConvNeXt's
    ``layer_scale``), unless they belong to a layer with a weight matrix. Module type and shape decide, not names:
    torchvision's ``downsample.1`` is a BatchNorm. Last, it has the parameters that the model or a part of it names
    itself, in timm's ``no_weight_decay()``. A parameter that several modules share occurs once, and counts as a norm
    layer's if any of them is one. Groups follow the model's parameter order; an empty one is left out.
    """
    scales = {id(p) for module in model.modules() for p in module.parameters(recurse=False) if _is_scale(module, p)}
    scales |= _without_decay(model)
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    for p in model.parameters():  # yields shared parameters once
        if p.requires_grad:
            (no_decay if p.ndim <= 1 or id(p) in scales else decay).append(p)
    groups: list[ParamGroup] = [
        {"params": decay, "weight_decay": weight_decay, "trust_ratio": True},
        {"params": no_decay, "weight_decay": 0.0, "trust_ratio": False},
    ]
    return [group for group in groups if group["params"]]


def _without_decay(model: nn.Module) -> set[int]:
    """Ids of the parameters that match what a module's ``no_weight_decay()`` returns: names, or patterns such as
    ``pos_embed.*``, as timm's own optimizers read it (``timm.optim.param_groups_weight_decay``)."""
    found: set[int] = set()
    for module in model.modules():
        method = getattr(module, "no_weight_decay", None)
        if callable(method) and (patterns := list(method() or ())):
            named = module.named_parameters(remove_duplicate=False)
            found |= {id(p) for name, p in named if any(fnmatchcase(name, pattern) for pattern in patterns)}
    return found


def _is_scale(module: nn.Module, p: nn.Parameter) -> bool:
    """Whether the parameter belongs to a norm layer, or is one number for each channel."""
    if isinstance(module, NORM_LAYERS):
        return True
    return not isinstance(module, WEIGHTED_LAYERS) and all(size == 1 for size in p.shape[1:])


def build_optimizer(model: nn.Module, config: OptimizerConfig, grad_scaler: bool = False) -> torch.optim.Optimizer:
    """The optimizer that ``config`` describes, at its peak learning rate. ``set_learning_rate`` multiplies a rate by
    each group's ``LR_FACTOR``.

    Args:
        model: must already be on its device.
        grad_scaler: whether a GradScaler takes the steps, with gradients that it has unscaled. On GPUs, torch's own
            optimizers, LARS and LAMB then leave out a step on the device. On CPUs torch's own are not fused.

    Raises ValueError if the model has no trainable parameter; ConfigError and OwnCodeError for a user's function.
    """
    groups = parameter_groups(model, config.weight_decay)
    for group in groups:
        group[LR_FACTOR] = 1.0 if group["trust_ratio"] else config.no_decay_lr_factor
    if not groups:
        raise ValueError(f"an optimizer needs trainable parameters; got none in {type(model).__name__}")
    if is_own(config.name):
        return _users_own(groups, config)
    fused = can_fuse((p for group in groups for p in group["params"]), grad_scaler)
    if config.name in ("sgd", "adamw"):
        return _torchs_own(groups, config, fused)
    optimizer = _lamb(groups, config) if config.name == "lamb" else _lars(groups, config)
    optimizer._step_supports_amp_scaling = grad_scaler and fused
    return optimizer


def _lars(groups: list[ParamGroup], config: OptimizerConfig) -> LARS:
    return LARS(
        groups,
        lr=config.peak_lr,
        momentum=config.momentum,
        trust_coefficient=config.trust_coefficient,
        nesterov=config.nesterov,
        momentum_convention="out" if config.larc != "off" else config.lars_momentum,
        eps=config.lars_eps,
        larc=config.larc,
    )


def _lamb(groups: list[ParamGroup], config: OptimizerConfig) -> LAMB:
    if config.nvlamb:
        groups = [{**group, "trust_ratio": True} for group in groups]
    return LAMB(
        groups,
        lr=config.peak_lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        bias_correction=config.bias_correction,
        pre_normalise=config.pre_normalise,
        trust_bounds=(config.min_trust_ratio, config.max_trust_ratio or math.inf),
    )


def _users_own(groups: list[ParamGroup], config: OptimizerConfig) -> torch.optim.Optimizer:
    """What the user's function (param_groups, lr, **options) returns.

    Groups have ``params``, ``weight_decay`` and ``LR_FACTOR``, and ``trust_ratio`` if the function has an attribute
    ``TRUST_RATIO`` that is true: torch's optimizers would keep it in their state to no purpose.
    """
    key, word = "optimizer.name", config.name
    function = loaded(key, word, ("param_groups", "lr"), config.options)
    if not getattr(function, "TRUST_RATIO", False):
        groups = [{name: value for name, value in group.items() if name != "trust_ratio"} for group in groups]
    ours = {id(p) for group in groups for p in group["params"]}
    with users_code(key, word):
        optimizer = function(groups, config.peak_lr, **config.options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"{key} must name a function that returns a torch.optim.Optimizer; got a {type(optimizer).__name__} from "
            f"{word}. Return the optimizer."
        )
    taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if taken != ours:
        raise ConfigError(
            f"an optimizer must take all parameters of param_groups and no others; {word} takes {len(taken & ours)} of "
            f"{len(ours)}, and {len(taken - ours)} others. Pass param_groups on."
        )
    return optimizer


def _torchs_own(groups: list[ParamGroup], config: OptimizerConfig, fused: bool) -> torch.optim.Optimizer:
    groups = [
        {key: value for key, value in group.items() if key != "trust_ratio"} for group in groups
    ]  # they do not know this flag
    how: dict[str, Any] = {"lr": config.peak_lr, "foreach": not fused, "fused": fused}
    optimizer: torch.optim.Optimizer
    if config.name == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **how)
    else:
        optimizer = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.eps, **how)
    begin_momentum(optimizer)
    keep_implementation(optimizer)
    return optimizer
