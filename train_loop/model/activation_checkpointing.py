"""Activation checkpointing: residual blocks keep only their input, and compute the rest again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.model.precise_bn import batch_norms


def checkpoint_blocks(model: nn.Module, name: str) -> None:
    """Make each residual block of a ResNet recompute its activations (Chen et al. 2016, arXiv 1604.06174).

    Losses, gradients and state dicts do not change. BatchNorm's running statistics do not change either: a block's
    second forward pass, during the backward pass, does not add the batch to them again. Raises ConfigError if the
    network has no such block.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck

    blocks = [m for m in model.modules() if isinstance(m, (BasicBlock, Bottleneck))]
    if not blocks:
        raise ConfigError(
            f"model.activation_checkpointing needs a ResNet; got model.name={name}. "
            "Write model.activation_checkpointing=false."
        )
    for block in blocks:
        block.forward = _checkpointed(block, block.forward)


def _checkpointed(
    block: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], object]:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(block)

    def run(x: torch.Tensor) -> object:
        if not torch.is_grad_enabled():
            return forward(x)
        if torch.compiler.is_compiling():  # the compiled backward pass writes no statistics, and takes no such context
            return checkpoint(forward, x, use_reentrant=False)
        return checkpoint(forward, x, use_reentrant=False, context_fn=contexts)

    return run


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's statistics: momentum 0 leaves running means and variances unchanged; counters are restored."""
    layers = batch_norms(block)
    kept = [(bn.momentum, bn.num_batches_tracked) for bn in layers]
    for bn in layers:
        bn.momentum = 0.0
        if bn.num_batches_tracked is not None:
            bn.num_batches_tracked = bn.num_batches_tracked.clone()
    try:
        yield
    finally:
        for bn, (momentum, count) in zip(layers, kept, strict=True):
            bn.momentum, bn.num_batches_tracked = momentum, count
