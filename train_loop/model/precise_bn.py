"""Recompute BatchNorm statistics for the present weights, because running averages lag behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from bigbatch.train_loop.distributed import World

FEW_STEPS = 100
"""``precise_bn=auto`` recomputes if an epoch has fewer steps. Running averages with momentum 0.1 contain 0.9^n of their
value n steps ago, which belongs to older weights. With large steps and 20 steps per epoch that matters: with batch 512,
digits showed 9 % top-1. With 100 steps, less than 0.9^100 < 3e-5 of an older epoch is left."""

ENOUGH = 256
"""Moments of this many images are good enough: even if the last map has one pixel, the mean of a channel has a standard
error of a sixteenth of its standard deviation."""


def images_of(most: int, train_size: int) -> int:
    """How many training images to use: `most`; of a small data set only a quarter, whose forward pass costs a twelfth
    of training an epoch, but at least `ENOUGH`, if there are so many."""
    return min(most, train_size, max(train_size // 4, ENOUGH))


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers that keep running statistics."""
    found = (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return [m for m in found if m.running_mean is not None and m.running_var is not None]


@torch.no_grad()
def recompute_statistics(
    model: nn.Module, batches: Iterable[object], world: World, forward: Callable[[object], object]
) -> None:
    """Set all running means and variances to those of ``batches``, over all ranks.

    Wu & Johnson 2021, "Rethinking 'Batch' in BatchNorm", §3: the layers normalise with the moments
    µ_B, σ²_B of each batch as in training, and the population's are

        µ = E[µ_B],   σ² = E[µ_B² + σ²_B] − E[µ_B]²

    with E the mean over the batches of all ranks. Float64 sums, one all-reduce. Ranks may have
    different numbers of batches, also none (but not with SyncBatchNorm, whose forward is a
    collective). Layers that no batch went through keep their statistics, and so do those that the
    model itself holds in eval mode while it trains (``train`` overridden), whose statistics are frozen.
    Parameters, each module's train/eval mode, momenta and all other buffers are left as they were.

    Args:
        model: without its DDP wrapper.
        batches: what ``forward`` takes, on the model's device: images ``[N, 3, H, W]``.
        forward: runs the model on one of them, under the run's autocast.
    """
    if not batch_norms(model):
        return
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (m._buffers, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None
    ]
    moments: list[_Moments] = []
    try:
        model.train()  # in eval mode layers would normalise with the old statistics
        moments += [_Moments(bn, world) for bn in batch_norms(model) if bn.training]
        for images in batches if moments else ():
            forward(images)
    finally:
        for m in moments:
            m.end()
        for module, training in modes:
            module.training = training
        for buffers, name, buffer, value in kept:  # a network may put another tensor in a buffer's place
            buffers[name] = buffer.copy_(value)
    if not moments:
        return
    total = world.sum(torch.cat([m.sums.flatten() for m in moments]))
    for m, flat in zip(moments, total.split([m.sums.numel() for m in moments]), strict=True):
        m.write(flat.view_as(m.sums))


class _Moments:
    """Adds up a layer's batch moments: float64 ``[4, C]`` = batches, Σ µ_B, Σ µ_B², Σ σ²_B."""

    def __init__(self, bn: nn.modules.batchnorm._BatchNorm, world: World) -> None:
        self._bn = bn
        self._workers = world.workers if isinstance(bn, nn.SyncBatchNorm) else 1
        self.sums = torch.zeros(4, bn.num_features, dtype=torch.float64, device=_of(bn.running_mean).device)
        # The running statistics are then those of the last batch alone ...
        self._momentum, bn.momentum = bn.momentum, 1.0
        self._hook = bn.register_forward_hook(self._add)
        self._clear()

    def end(self) -> None:
        """Restore the layer, except its running statistics."""
        self._hook.remove()
        self._bn.momentum = self._momentum

    def _clear(self) -> None:
        _of(self._bn.running_mean).zero_()  # ... unless 0 · (infinite or NaN) is added to them
        _of(self._bn.running_var).fill_(1.0)

    def _add(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        count = inputs[0].numel() // inputs[0].shape[1] * self._workers
        mean = _of(self._bn.running_mean).double()
        var = _of(self._bn.running_var).double() * ((count - 1) / count)  # torch keeps the unbiased one
        self.sums += torch.stack((torch.ones_like(mean), mean, mean.square(), var))
        self._clear()

    def write(self, total: torch.Tensor) -> None:
        batches, mean, mean_square, var = total
        seen = batches > 0
        mean, mean_square, var = (x / batches.clamp(min=1.0) for x in (mean, mean_square, var))
        # Rounding may make it negative.
        var = (mean_square - mean.square() + var).clamp(min=0.0)
        for buffer, value in ((self._bn.running_mean, mean), (self._bn.running_var, var)):
            old = _of(buffer)
            old.copy_(torch.where(seen, value.to(old.dtype), old))


def _of(buffer: torch.Tensor | None) -> torch.Tensor:
    assert buffer is not None  # batch_norms() chose layers that have them
    return buffer
