"""Histograms of a network's parameters and gradients, once an epoch, for a reporter that asks for them.

The optimizer's own hook sees the gradients as it gets them: summed over micro-batches and ranks, without fp16's scale,
and clipped. A step that fp16 skips has none. Ranks have the same values, so rank 0 alone looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from bigbatch.train_loop.loop.assembly import Run

BINS = 64
"""As many as those of ``wandb.watch``."""
GRADIENTS, PARAMETERS = "gradients", "parameters"


@dataclass(frozen=True)
class TensorHistogram:
    """How the finite values of a tensor are distributed over ``BINS`` bins of one width."""

    low: float
    high: float
    counts: tuple[int, ...]


@contextlib.contextmanager
def watched_model(run: Run) -> Iterator[None]:
    """Within the block the reporter gets histograms at the last step of each epoch, if it watches anything."""
    kinds = getattr(run.reporter, "watched", ())
    if not kinds or run.world.rank != 0:
        yield
        return

    def look(*_: object) -> None:
        if run.progress.step + 1 == run.steps_per_epoch:
            run.reporter.histograms(run.progress.epoch + 1, histograms_of(run.model, kinds))  # type: ignore[attr-defined]

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
            if kind in kinds and values is not None and (one := histogram(values)) is not None:
                found[f"{kind}/{name}"] = one
    return found


def histogram(values: torch.Tensor) -> TensorHistogram | None:
    """The histogram of a tensor of any shape. None if it has no finite value."""
    flat = values.detach().float().flatten()
    flat = flat[torch.isfinite(flat)]
    if not len(flat):
        return None
    low, high = (float(end) for end in torch.aminmax(flat))
    if low == high:  # as numpy.histogram does
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(flat, BINS, low, high).tolist()
    return TensorHistogram(low, high, tuple(int(count) for count in counts))
