"""Activation checkpointing: parts of a network keep only their input, and the backward pass computes the rest again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.model.precise_bn import batch_norms
from bigbatch.train_loop.model.sharding import blocks

LEAST_LAYERS = 4
"""A chain of fewer layers is not cut: its segments would save nothing."""


def checkpoint_blocks(model: nn.Module, name: str, *, whole_blocks: bool = False) -> None:
    """Make parts of a network recompute their activations (Chen et al. 2016, arXiv 1604.06174).

    In a ResNet these are its residual blocks. In any other network each outermost ``nn.Sequential`` of n layers, with
    those of the ones inside it, is cut into about √n segments, as torch's ``checkpoint_sequential`` cuts it; the last
    one keeps all, because its backward pass begins at once. Without such a chain, or with ``whole_blocks``, each part
    is one of ``sharding.blocks``: what is sharded must be recomputed as a whole.

    Losses, gradients and state dicts do not change. BatchNorm's running statistics do not change either: the second
    forward pass, during the backward pass, does not add the batch to them again. Raises ConfigError if the network has
    no such part.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck

    parts = [m for m in model.modules() if isinstance(m, (BasicBlock, Bottleneck))]
    chains = [chain for chain in _outermost(model) if len(_layers(chain)) >= LEAST_LAYERS]
    if not parts and (whole_blocks or not chains):
        parts = [m for m in blocks(model) if next(m.children(), None) is not None]
    for part in parts:
        part.forward = MethodType(_recomputed, part)
    if parts:
        return
    if not chains:
        raise ConfigError(
            f"model.activation_checkpointing needs a ResNet, an nn.Sequential of at least {LEAST_LAYERS} layers, or a "
            f"list of blocks; got model.name={name}. Write model.activation_checkpointing=false."
        )
    for chain in chains:
        chain.forward = MethodType(_in_segments, chain)  # type: ignore[method-assign]


def _outermost(module: nn.Module) -> Iterator[nn.Sequential]:
    if isinstance(module, nn.Sequential) and _is_plain(module):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _is_plain(chain: nn.Sequential) -> bool:
    """Whether it calls one layer after the other: a subclass may do something else."""
    # A hook would not be called where the layers are called one by one.
    return type(chain).forward is nn.Sequential.forward and not (chain._forward_hooks or chain._forward_pre_hooks)


def _layers(chain: nn.Sequential) -> list[nn.Module]:
    """The layers, with those of plain ``nn.Sequential`` inside."""
    found: list[nn.Module] = []
    for child in chain:  # children() would leave out a layer that occurs again
        found += _layers(child) if isinstance(child, nn.Sequential) and _is_plain(child) else [child]
    return found


def _segments(layers: Sequence[nn.Module]) -> list[Sequence[nn.Module]]:
    """About √n parts. None begins with a layer that overwrites its input: that would be lost for the second pass."""
    size = math.ceil(len(layers) / round(math.sqrt(len(layers))))
    found: list[Sequence[nn.Module]] = []
    start = 0
    while start < len(layers):
        end = start + size
        while end < len(layers) and getattr(layers[end], "inplace", False):
            end += 1
        found.append(layers[start:end])
        start = end
    return found


def _recomputed(part: nn.Module, *inputs: Any, **named: Any) -> Any:
    return _checkpointed([part], partial(type(part).forward, part))(*inputs, **named)


def _in_segments(chain: nn.Sequential, x: Any) -> Any:
    """The forward pass of a chain. Its layers are looked up anew: BatchNorm may have become SyncBatchNorm since."""
    *first, last = _segments(_layers(chain))
    for segment in first:
        x = _checkpointed(segment, _after_each_other(segment))(x)
    return _after_each_other(last)(x)


def _after_each_other(layers: Sequence[nn.Module]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return run


def _checkpointed(parts: Sequence[nn.Module], forward: Callable[..., Any]) -> Callable[..., Any]:
    """A version of ``forward``, which runs ``parts`` of the network, that keeps only its input.

    It raises ConfigError if the parts overwrite their first argument.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(parts)

    def run(x: Any, *others: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(x, *others, **named)
        if torch.compiler.is_compiling():  # the compiled backward pass writes no statistics, and takes no such context
            return checkpoint(forward, x, *others, use_reentrant=False, **named)
        version = x._version if isinstance(x, torch.Tensor) else None  # counts changes in place; nothing public does
        y = checkpoint(forward, x, *others, use_reentrant=False, context_fn=contexts, **named)
        if version is not None and x._version != version:
            raise ConfigError(
                "model.activation_checkpointing needs layers that leave their input as it is, for they compute with it "
                f"twice; got {type(parts[0]).__name__}, which overwrites it. "
                "Write model.activation_checkpointing=false, or inplace=False in the network."
            )
        return y

    return run


@contextmanager
def _statistics_kept(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Keep BatchNorm's statistics: momentum 0 leaves running means and variances unchanged; counters are restored."""
    layers = [bn for part in parts for bn in batch_norms(part)]
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
