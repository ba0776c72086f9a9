"""The gradient noise scale: how large a batch must be before its gradient stops being mostly noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def noise_scale(small_sq: float, big_sq: float, small_batch: int, big_batch: int) -> float | None:
    """B_simple = tr(Σ)/|G|² in images (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).

    Of gradients averaged over b = small_batch and B = big_batch images, E|g_b|² = |G|² + tr(Σ)/b. So

        |G|² = (B|g_B|² − b|g_b|²) / (B − b)        tr(Σ) = (|g_b|² − |g_B|²) / (1/b − 1/B)

    are unbiased, with the two squared norms averaged over many steps *before* the division: the mean
    of the ratios is not the ratio of the means.

    Returns None if the estimate of |G|² or tr(Σ) is not positive, because there were too few steps; and if B = b.
    """
    if big_batch <= small_batch:
        return None
    signal = (big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)
    noise = (small_sq - big_sq) / (1 / small_batch - 1 / big_batch)
    if not (signal > 0 and noise > 0):  # also where a sum is NaN
        return None
    return noise / signal


class GradientNorms:
    """Sums over steps of |g_b|² and |g_B|², taken from gradients that training computes anyway.

    B is the global batch. b is a micro-batch: with accumulation, the step's first one on this rank,
    read before the others are added to it; without, this rank's share of the step, read from DDP's
    buckets before they are all-reduced. One worker without accumulation has no b, and nothing is measured. A sharded
    network is not measured either, because no rank has a whole gradient.
    The cost is one pass over the gradients for each of the two norms; the host reads nothing.

    ``sums``: float64 ``[3]`` on the device, Σ|g_b|², Σ|g_B|², steps. Steps whose gradients overflow are left out.
    """

    def __init__(self, device: torch.device, accumulation_steps: int, workers: int, wanted: bool = True) -> None:
        """``wanted``: whether to measure anything."""
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._accumulation_steps = accumulation_steps
        self._workers = workers
        self._wanted = wanted
        self._small = torch.zeros((), dtype=torch.float64, device=device)
        self.one = torch.ones((), device=device)

    @property
    def measured(self) -> bool:
        """Whether a step has at least two gradients to compare: of several workers or micro-batches."""
        return self._wanted and self._accumulation_steps * self._workers > 1

    def watch(self, parallel: nn.Module, bf16: bool = False) -> None:
        """Read this rank's gradients just before DDP averages them, if they cannot be read elsewhere.

        ``bf16``: DDP sends them in bf16. It takes one hook, so both are done here.
        """
        reads = self.measured and self._accumulation_steps == 1
        if not isinstance(parallel, DistributedDataParallel) or not (reads or bf16):
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        send = default_hooks.bf16_compress_hook if bf16 else default_hooks.allreduce_hook
        # A lambda: torch compares a hook's annotations with types, and here they are text.
        parallel.register_comm_hook(None, lambda _, bucket: self._sent(bucket, send, reads))

    def _sent(
        self, bucket: dist.GradBucket, send: Callable[..., torch.futures.Future[torch.Tensor]], reads: bool
    ) -> torch.futures.Future[torch.Tensor]:
        if reads:
            norm = torch.linalg.vector_norm(bucket.buffer(), dtype=torch.float32)
            self._small += norm.double().square()
        return send(None, bucket)  # None: the default process group

    @torch.no_grad()
    def first_micro_batch(self, parameters: Iterable[torch.Tensor]) -> None:
        """After the backward pass of the first of several micro-batches: gradients are g_b / their number."""
        if self.measured and self._accumulation_steps > 1:
            self._small = squared_norm(parameters) * self._accumulation_steps**2

    @torch.no_grad()
    def step(self, parameters: Iterable[torch.Tensor], scale: torch.Tensor | float, counts: bool = True) -> None:
        """After the last backward pass, before clipping. ``scale``: the loss scale the gradients have.

        Args:
            counts: False for a step of another batch size, which is left out.
        """
        if not self.measured:
            return
        if not counts:
            self._small = torch.zeros_like(self._small)
            return
        norms = torch.stack((self._small, squared_norm(parameters))) / scale**2
        values = torch.cat((norms, torch.ones_like(norms[:1])))
        self.sums += torch.where(torch.isfinite(norms).all(), values, 0.0)
        self._small = torch.zeros_like(self._small)

    def estimate(self, sums: list[float], big_batch: int) -> float | None:
        """The noise scale from ``sums``, added up over all ranks."""
        small, big, steps = sums
        small_batch = big_batch // (self._accumulation_steps * self._workers)
        return noise_scale(small / steps, big / steps, small_batch, big_batch) if steps else None


def squared_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of the squared L2 norms of the gradients, float64 ``[]``."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms: Any = torch._foreach_norm(gradients)
    return torch.stack(norms).double().square().sum()
