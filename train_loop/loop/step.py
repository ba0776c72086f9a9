"""One training step on one device: normalise → forward → loss → backward → optimizer → average.

The loop, the learning-rate range test and the loader report take it with a run's data; the memory probe takes it with
made-up images, so that it measures what a run does. Nothing in here waits for the device, but for fp16's scale.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.model.losses import training_loss
from bigbatch.train_loop.model.weight_average import WeightAverage
from bigbatch.train_loop.optim import set_learning_rate


@dataclass(frozen=True)
class TrainStep:
    """What is computed with, and how. ``gradients`` of each micro-batch, then one ``update``."""

    config: TrainConfig
    device: torch.device
    normalise: Callable[[torch.Tensor], torch.Tensor]
    """A batch's images on the device → float32 ``[N, 3, H, W]``: ``DataSource.finish``."""
    model: nn.Module
    """Without DDP: what is validated and saved."""
    parallel: nn.Module
    """The same model as training calls it."""
    optimizer: torch.optim.Optimizer
    scaler: GradScaler
    average: WeightAverage | None
    precision: str
    """``off``, ``bf16`` or ``fp16``."""

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Images as the model takes them, from a batch's images on the device."""
        return self.normalise(images).contiguous(memory_format=memory_layout(self.config))

    def autocast(self) -> torch.autocast:
        """Within it, layers compute in the run's precision."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype, enabled=self.precision != "off")

    def gradients(
        self, images: torch.Tensor, targets: torch.Tensor, count: int, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a micro-batch's share to the gradients of the global batch's mean loss.

        All micro-batches of a step have one size and DDP averages over ranks, so the sum of the shares is the mean.

        Args:
            images: of ``prepare``.
            targets: classes ``[N]``, or ``[N, K]`` where images are mixed.
            count: micro-batches of this rank in the step.
            last: of these. Gradients are summed over the ranks with the last one.

        Returns the micro-batch's mean loss ``[]``, float32, and its logits ``[N, K]`` in the run's precision, detached.
        """
        with contextlib.nullcontext() if last else self._gradients_stay_local():
            with self.autocast():
                logits = self.parallel(images)
            loss = training_loss(logits.float(), targets, self.config.loss, self.config.label_smoothing)
            self.scaler.scale(loss / count).backward()
        return loss.detach(), logits.detach()

    def update(self, rate: float, number: int) -> bool:
        """Step with the gradients, take the weights into the average, and clear the gradients.

        Args:
            rate: learning rate of this step.
            number: of this step among those that were taken, 1-based.

        Returns whether the step was taken: False where fp16's gradients overflowed. They are the same on all ranks,
        so all ranks agree.
        """
        set_learning_rate(self.optimizer, rate)
        clip = self.config.optimizer.clip_grad_norm
        if clip > 0 or self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)  # before any norm: the clip's here and LARS' and LAMB's in the step
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        taken = self._step_unless_overflow()
        if taken and self.average:
            self.average.update(number)
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def _step_unless_overflow(self) -> bool:
        if not self.scaler.is_enabled():
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def _gradients_stay_local(self) -> contextlib.AbstractContextManager[None]:
        ddp = isinstance(self.parallel, DistributedDataParallel)
        return self.parallel.no_sync() if ddp else contextlib.nullcontext()  # type: ignore[operator]


def memory_layout(config: TrainConfig) -> torch.memory_format:
    """How weights and images lie in memory."""
    return torch.channels_last if config.model.channels_last else torch.contiguous_format
