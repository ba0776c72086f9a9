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
    """Sums of loss over images, right answers, and images: float64 ``[3]`` (see ``NAMES``) on the device.

    A batch costs the device five operations: its numbers are added with one, each times its weight.
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(NAMES), dtype=torch.float64, device=device)
        self._one = torch.ones((), device=device)
        self._no_answer = torch.full((), math.nan, device=device)
        self._weights: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def add(self, mean_loss: torch.Tensor, logits: Nested, labels: Nested) -> None:
        """Add a batch: its mean loss ``[]``, logits ``[N, classes]``, labels ``[N]``.

        For other outputs and targets there are no right answers: their sum is then not a number.
        """
        right = (logits.argmax(dim=1) == labels).sum() if _have_classes(logits, labels) else self._no_answer
        numbers = torch.stack((mean_loss, right, self._one))  # float32 counts exactly to 2^24
        self.values.addcmul_(numbers, self._weights_of(example_count(labels)))

    def _weights_of(self, count: int) -> torch.Tensor:
        """Made once for each size of a batch: to bring them to a device the host waits for it."""
        if count not in self._weights:
            self._weights[count] = self.values.new_tensor([count, 1, count])
        return self._weights[count]

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
    """Finds the first loss that was not finite, without waiting for the device at each step.

    ``add`` each loss, then ``codes`` from time to time (this waits), all-reduce them with MAX so
    that every rank knows, and ``check``. Until then the losses stay where they are: a step costs the device nothing.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[int, torch.Tensor]] = []
        self._rates: dict[int, float] = {}

    def add(self, step: int, learning_rate: float, loss: torch.Tensor) -> None:
        """Add the loss ``[]``, detached, of a micro-batch of the epoch's optimizer step ``step`` (0-based)."""
        self._rates[step] = learning_rate
        self._losses.append((step, loss))

    def codes(self) -> tuple[float, float]:
        """(−step, kind) of the first bad loss since the last call, (−inf, 0) if there is none: larger means earlier."""
        losses, self._losses = self._losses, []
        values = torch.stack([loss for _, loss in losses]).tolist() if losses else []
        for (step, _), loss in zip(losses, values, strict=True):
            if not math.isfinite(loss):
                return -float(step), _NAN if math.isnan(loss) else _INF if loss > 0 else _MINUS_INF
        return -math.inf, 0.0

    def check(self, minus_step: float, kind: float, epoch: int) -> None:
        """Raise NonFiniteLossError if the (all-reduced) codes hold a bad loss; ``epoch`` is 1-based."""
        if minus_step > -math.inf:
            step = int(-minus_step)
            raise NonFiniteLossError(
                f"training loss is {_VALUES[kind]} in epoch {epoch} at its step {step + 1} "
                f"with learning rate {self._rates[step]:.6g}"
            )
        self._rates.clear()
