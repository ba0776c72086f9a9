"""Histograms of a network's parameters and gradients, in its epochs, for a reporter that asks for them.

The optimizer's own hook sees the gradients as it gets them: summed over micro-batches and ranks, without fp16's scale,
and clipped. A step that fp16 skips has none. Ranks have the same values, so rank 0 alone looks; of a sharded network at
its own part.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from bigbatch.train_loop.optim.layerwise import local

if TYPE_CHECKING:
    from bigbatch.train_loop.loop.assembly import Run

BINS = 64
"""As many as those of ``wandb.watch``."""
SAMPLE = 16_384
"""Of a larger tensor about as many values are counted: 256 a bin. All of them took most of monitoring's time."""
LEAST_S = 15.0
"""Shorter epochs do not all have histograms, which would take a part of their time that counts. W&B looks at the
processors as often."""
GRADIENTS, PARAMETERS = "gradients", "parameters"


@dataclass(frozen=True)
class TensorHistogram:
    """How the finite values of a tensor are distributed over ``BINS`` bins of one width.

    ``low`` and ``high`` are the least and the largest of all values, the counts those of at most ``SAMPLE`` of them.
    """

    low: float
    high: float
    counts: tuple[int, ...]


@contextlib.contextmanager
def watched_model(run: Run) -> Iterator[None]:
    """Within the block the reporter gets histograms at the last step of an epoch, if it watches anything.

    These are the run's first and last epoch, the first one after a resume, and each that ends ``LEAST_S`` seconds or
    more after the one before that had some.
    """
    kinds = getattr(run.reporter, "watched", ())
    if not kinds or run.world.rank != 0:
        yield
        return

    due = -math.inf

    def look(*_: object) -> None:
        nonlocal due
        epoch = run.progress.epoch + 1
        if run.progress.step + 1 < run.steps_per_epoch or (time.monotonic() < due and epoch < run.config.epochs):
            return
        due = time.monotonic() + LEAST_S
        run.reporter.histograms(epoch, histograms_of(run.model, kinds))  # type: ignore[attr-defined]

    handle = run.optimizer.register_step_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def histograms_of(model: nn.Module, kinds: Collection[str]) -> Mapping[str, TensorHistogram]:
    """``gradients/NAME`` and ``parameters/NAME`` → its histogram, for each of the network's parameters."""
    found: dict[str, TensorHistogram] = {}
    for name, parameter in model.named_parameters():
        for kind, values in ((GRADIENTS, parameter.grad), (PARAMETERS, parameter)):
            if kind in kinds and values is not None and (one := histogram(local(values))) is not None:
                found[f"{kind}/{name}"] = one
    return found


def histogram(values: torch.Tensor) -> TensorHistogram | None:
    """The histogram of a tensor of any shape. None if it has no finite value.

    Of more than ``SAMPLE`` values every k-th is counted, in the order of the memory. k has no factor in common with
    their number: with one, such as 9, a convolution of 3 × 3 would show some places of its kernels alone.
    """
    in_memory = sorted(range(values.dim()), key=values.stride, reverse=True)
    flat = values.detach().permute(in_memory).flatten()  # a view, of a network in channels_last too
    if not len(flat):
        return None
    low, high = (float(end) for end in torch.aminmax(flat))
    if not (math.isfinite(low) and math.isfinite(high)):  # NaN if any value is
        flat = flat[torch.isfinite(flat)]
        return histogram(flat) if len(flat) else None
    if low == high:  # as numpy.histogram does
        low, high = low - 0.5, high + 0.5
    # histc takes no half precision.
    counts = torch.histc(flat[:: _stride(len(flat))].float(), BINS, low, high).tolist()
    return TensorHistogram(low, high, tuple(int(count) for count in counts))


def _stride(length: int) -> int:
    stride = math.ceil(length / SAMPLE)
    while math.gcd(stride, length) > 1:
        stride += 1
    return stride
