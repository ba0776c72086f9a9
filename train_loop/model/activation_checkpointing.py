"""Activation checkpointing: parts of a network keep only their input, and the backward pass computes the rest again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.model.precise_bn import batch_norms
from bigbatch.train_loop.model.sharding import blocks


def checkpoint_blocks(model: nn.Module, name: str) -> None:
    """Make parts of a network recompute their activations (Chen et al. 2016, arXiv 1604.06174).

    In a ResNet these are its residual blocks, in any other network those of ``sharding.blocks`` that have layers.

    Losses, gradients and state dicts do not change. BatchNorm's running statistics do not change either: the second
    forward pass, during the backward pass, does not add the batch to them again. Raises ConfigError if the network has
    no such part.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck

    parts = [m for m in model.modules() if isinstance(m, (BasicBlock, Bottleneck))]
    parts = parts or [m for m in blocks(model) if next(m.children(), None) is not None]
    if not parts:
        raise ConfigError(
            "model.activation_checkpointing needs a ResNet, or another network with a list of blocks; got "
            f"model.name={name}. Write model.activation_checkpointing=false."
        )
    for part in parts:
        part.forward = MethodType(_recomputed, part)


def _recomputed(part: nn.Module, x: Any, *others: Any, **named: Any) -> Any:
    """The forward pass of a part, which keeps its input alone. Raises ConfigError if it overwrites that."""
    forward = partial(type(part).forward, part)
    if not torch.is_grad_enabled():
        return forward(x, *others, **named)
    if torch.compiler.is_compiling():  # the compiled backward pass writes no statistics, and takes no such context
        return checkpoint(forward, x, *others, use_reentrant=False, **named)
    version = x._version if isinstance(x, torch.Tensor) else None  # counts changes in place; nothing public does
    kept = lambda: (nullcontext(), _statistics_kept(part))  # noqa: E731
    y = checkpoint(forward, x, *others, use_reentrant=False, context_fn=kept, **named)
    if version is not None and x._version != version:
        raise ConfigError(
            "model.activation_checkpointing needs layers that leave their input as it is, for they compute with it "
            f"twice; got {type(part).__name__}, which overwrites it. "
            "Write model.activation_checkpointing=false, or inplace=False in the network."
        )
    return y


@contextmanager
def _statistics_kept(part: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's statistics: momentum 0 leaves running means and variances unchanged; counters are restored."""
    layers = batch_norms(part)
    kept = [(bn.momentum, bn.num_batches_tracked) for bn in layers]
    for bn in layers:
        bn.momentum = 0.0
        if bn.num_batches_tracked is not None:
            # torch counts in place: let it count in a copy.
            bn.num_batches_tracked = bn.num_batches_tracked.clone()
    try:
        yield
    finally:
        for bn, (momentum, count) in zip(layers, kept, strict=True):
            bn.momentum, bn.num_batches_tracked = momentum, count
