"""Model sharding by torch's ``fully_shard`` (FSDP2, Zhao et al. 2023, arXiv 2304.11277).

Each worker keeps a part of every weight, with its gradient and its state in the optimizer, as DTensors. The whole
weights of a block exist only while it computes; autograd keeps autocast's copies of them until the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from bigbatch.train_loop.config import ConfigError

if TYPE_CHECKING:
    from bigbatch.train_loop.distributed import World

LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
LEAST_LAYER = 0.01
"""A single layer with a smaller part of the network's weights is no block: its own message would cost more than it
saves."""


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts that a network repeats: the entries of its lists of modules that have trainable weights.

    A list is an ``nn.Sequential``, ``nn.ModuleList`` or ``nn.ModuleDict``. If an entry has lists of several such parts
    itself, e.g. a stage of a CoAtNet, these replace it. Entries that share a weight with other places are left out.
    """
    total = _size(model)
    found = [part for part in _entries(model) if _has_parts(part) or _size(part) >= LEAST_LAYER * total]
    uses = _uses(model)
    return [part for part in found if all(uses[p] == times for p, times in _uses(part).items())]


def _entries(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, LISTS) or not isinstance(module, LISTS):
            yield from _entries(child)
        elif any(p.requires_grad for p in child.parameters()):
            inner = [part for part in _entries(child) if _has_parts(part)]
            yield from inner if len(inner) > 1 else [child]


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    return Counter(p for _, p in module.named_parameters(remove_duplicate=False))


def check_shardable(model: nn.Module, name: str) -> None:
    """Raise ConfigError for a network that ``fully_shard`` cannot take."""
    for parameter, value in model.named_parameters():
        if value.ndim == 0:
            raise ConfigError(
                f"model.parallel=fsdp2 needs parameters with a dimension; got {parameter!r} of shape [] in "
                f"model.name={name}. Give it shape [1], or write model.parallel=ddp."
            )
    types = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.requires_grad})
    if len(types) > 1:
        raise ConfigError(
            f"model.parallel=fsdp2 needs trainable parameters of one type; got {' and '.join(types)} in "
            f"model.name={name}. Give them one, or write model.parallel=ddp."
        )


def shard(model: nn.Module, world: World, *, bf16_gradients: bool) -> nn.Module:
    """The same network, sharded over the workers: each of its ``blocks``, then the rest. All ranks call this.

    Blocks go to the device one after the other, so it need not hold the whole network.

    Args:
        model: on the CPU, or on the device. All get rank 0's weights.
        bf16_gradients: sum gradients over the workers in bf16.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for tensor in (*model.parameters(), *model.buffers()):
        # As DDP does, because a user's network may draw without our seed. FSDP2 and gloo take no channels_last.
        there = tensor.detach().to(world.device).contiguous()
        dist.broadcast(there, src=0)
        tensor.data = there.to(tensor.device)
    how: dict[str, Any] = {
        "mesh": init_device_mesh(world.device.type, (world.workers,)),
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if bf16_gradients else None),
    }
    for part in blocks(model):
        fully_shard(part, **how)
    fully_shard(model, reshard_after_forward=False, **how)
    return model


def is_shared_out(model: nn.Module) -> bool:
    """Whether ``shard`` has sharded it."""
    return hasattr(model, "set_requires_gradient_sync")  # torch's class for it takes a second to import


@contextmanager
def gradients_stay_local(model: nn.Module) -> Iterator[None]:
    """Within the block a backward pass adds to whole gradients on this rank. The next pass outside sums them."""
    model.set_requires_gradient_sync(False)  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)  # type: ignore[operator]


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Within the block each worker has all weights, and a forward pass waits for no other worker: ranks may make
    different numbers of passes. Does nothing to a network that is not sharded."""
    parts: list[Any] = [part for part in model.modules() if is_shared_out(part)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.reshard()
