"""Sums of loss, right answers and images that stay on the device until an epoch ends; and a watch for NaN losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bigbatch.train_loop.errors import NonFiniteLossError
from bigbatch.train_loop.plugins.nested import Nested, example_count

NAMES = ("loss", "correct", "images")
"""Checkpoints hold the sums in this order: append new names."""
_NAN, _INF, _MINUS_INF = 3.0, 2.0, 1.0
_VALUES = {_NAN: math.nan, _INF: math.inf, _MINUS_INF: -math.inf}


class MetricSums:
    """Sums of loss over images, right answers, and images: float64 ``[3]`` (see ``NAMES``) on the device."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(NAMES), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, mean_loss: torch.Tensor, logits: Nested, labels: Nested) -> None:
        """Add a batch: its mean loss ``[]``, logits ``[N, classes]``, labels ``[N]``.

        For other outputs and targets there are no right answers: their sum is then not a number.
        """
        count = example_count(labels)
        self.values[0] += mean_loss.double() * count
        self.values[1] += (logits.argmax(dim=1) == labels).sum() if _have_classes(logits, labels) else math.nan
        self.values[2] += count

    def restore(self, saved: Sequence[float]) -> None:
        """Continue from the sums of a checkpoint. Missing sums are 0; sums that this version lacks are ignored."""
        known = saved[: len(NAMES)]
        self.values.zero_()
        self.values[: len(known)] = torch.tensor(known, dtype=torch.float64)


def _have_classes(outputs: Nested, targets: Nested) -> bool:
    """Whether these are scores ``[N, K]`` and classes ``[N]``. The largest of one score says nothing."""
    return (
        isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and outputs.is_floating_point()
        and outputs.shape[1] > 1
        and isinstance(targets, torch.Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    )  # fmt: skip


class LossWatch:
    """Remembers the first loss that was not finite, without waiting for the device.

    ``add`` each loss, then ``codes`` from time to time (this waits), all-reduce them with MAX so
    that every rank knows, and ``check``.
    """

    def __init__(self, device: torch.device) -> None:
        self._first = torch.zeros(2, dtype=torch.float64, device=device)  # step + 1 (0: none yet), loss
        self._rates: dict[int, float] = {}

    @torch.no_grad()
    def add(self, step: int, learning_rate: float, loss: torch.Tensor) -> None:
        """Add the loss of a micro-batch of the epoch's optimizer step ``step`` (0-based)."""
        self._rates[step] = learning_rate
        loss = loss.detach().double()
        found = torch.stack((torch.full_like(loss, step + 1), loss))
        self._first = torch.where((self._first[0] == 0) & ~torch.isfinite(loss), found, self._first)

    def codes(self) -> tuple[float, float]:
        """(−step, kind) of the first bad loss, (−inf, 0) if there is none: larger means earlier."""
        step, loss = self._first.tolist()
        if step == 0:
            return -math.inf, 0.0
        return 1.0 - step, _NAN if math.isnan(loss) else _INF if loss > 0 else _MINUS_INF

    def check(self, minus_step: float, kind: float, epoch: int) -> None:
        """Raise NonFiniteLossError if the (all-reduced) codes hold a bad loss; ``epoch`` is 1-based."""
        if minus_step > -math.inf:
            step = int(-minus_step)
            raise NonFiniteLossError(
                f"training loss is {_VALUES[kind]} in epoch {epoch} at its step {step + 1} "
                f"with learning rate {self._rates[step]:.6g}"
            )
        self._rates.clear()
