"""A moving average of the weights. Validation uses it instead of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bigbatch.train_loop.optim.layerwise import local


class WeightAverage:
    """θ̄ ← d·θ̄ + (1 − d)·θ after each optimizer step (Polyak & Juditsky 1992, with exponential weights).

    After step t (from 1), d = min(decay, (1 + t)/(10 + t)), as in TensorFlow's ExponentialMovingAverage with
    num_updates. A run with a large batch may have fewer than 1/(1 − decay) steps. With a constant d, its average
    would stay near the initial weights.

    BatchNorm's running statistics are averaged in the same way. They belong to the trained weights, not to the averaged
    ones. If the run recomputes statistics before validation, it does so for the averaged weights (within ``in_place``),
    and the result is kept here.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors = [t.detach().clone() for t in self._live()]
        """The average: parameters, then floating-point buffers, in the model's order."""

    def _live(self) -> list[torch.Tensor]:
        """What is averaged, as the model has it now: not BatchNorm's counters of batches, which are whole numbers."""
        return [t for t in (*self._model.parameters(), *self._model.buffers()) if t.is_floating_point()]

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Take in the weights after optimizer step number ``steps``, 1-based."""
        decay = min(self._decay, (1 + steps) / (10 + steps))
        # torch updates many tensors in one operation if they are of one type.
        by_dtype: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for mean, live in zip(self.tensors, self._live(), strict=True):
            means, lives = by_dtype.setdefault(live.dtype, ([], []))
            means.append(local(mean))
            lives.append(local(live))
        for means, lives in by_dtype.values():
            torch._foreach_lerp_(means, lives, 1.0 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model has the averaged weights and statistics; afterwards its own again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for mean, live in zip(self.tensors, self._live(), strict=True):
            kept = live.detach().clone()
            live.copy_(mean)
            mean.copy_(kept)

    @torch.no_grad()
    def load(self, tensors: list[torch.Tensor]) -> None:
        """Load the value that ``tensors`` had when a checkpoint was written."""
        for mean, saved in zip(self.tensors, tensors, strict=True):
            mean.copy_(saved)
