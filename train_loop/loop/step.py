"""One training step on one device: normalise → forward → loss → backward → optimizer → average.

The loop, the profile and the learning-rate range test use it. Nothing here waits for the device, unless fp16 meets an
optimizer that cannot leave out a step by itself: see ``TrainStep.update``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import UnusedParameterError
from bigbatch.train_loop.model.losses import LossFunction, has_own_loss, loss_function, plain_loss
from bigbatch.train_loop.model.sharding import gradients_stay_local, is_shared_out
from bigbatch.train_loop.model.weight_average import WeightAverage
from bigbatch.train_loop.optim import set_learning_rate
from bigbatch.train_loop.optim.layerwise import total_norm
from bigbatch.train_loop.plugins.nested import Nested, map_tensors

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


def _untimed(_: str) -> AbstractContextManager[None]:
    return _NOTHING


@dataclass(frozen=True)
class TrainStep:
    """A training step: call ``gradients`` for each micro-batch, then ``update`` once."""

    config: TrainConfig
    device: torch.device
    normalise: Callable[[Nested], Nested]
    """A batch's images on the device → float32 ``[N, 3, H, W]``: ``DataSource.finish``."""
    model: nn.Module
    """The model without DDP, as it is validated and saved."""
    parallel: nn.Module
    """The same model, as training calls it."""
    optimizer: torch.optim.Optimizer
    scaler: GradScaler
    average: WeightAverage | None
    precision: str
    """``off``, ``bf16`` or ``fp16``."""
    phase: Callable[[str], AbstractContextManager[None]] = _untimed
    """Times a named block: ``Chronometer.phase``."""

    @cached_property
    def loss(self) -> LossFunction:
        """The mean loss of outputs and targets."""
        return loss_function(self.config, self.device)

    @cached_property
    def validation_loss(self) -> LossFunction:
        """The mean loss in validation: the user's own loss, else one that is comparable between runs."""
        return self.loss if has_own_loss(self.config) else plain_loss(self.config.loss)

    @cached_property
    def skipped(self) -> torch.Tensor:
        """How many steps fp16's scaler has left out since the run began, ``[]`` on the device."""
        return torch.zeros((), dtype=torch.int64, device=self.device)

    def prepare(self, images: Nested) -> Nested:
        """The input of the model, from a batch's images on the device. Inputs that are not images stay as they are."""
        inputs = self.normalise(images)
        if isinstance(inputs, torch.Tensor) and inputs.ndim == 4 and inputs.is_floating_point():
            return inputs.contiguous(memory_format=memory_layout(self.config))
        return inputs

    def autocast(self) -> torch.autocast:
        """A context in which layers compute in the run's precision."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        # Its cache would keep the cast weights of all of a sharded network's blocks until the forward pass ends.
        cached = not is_shared_out(self.model)
        return torch.autocast(self.device.type, dtype=dtype, enabled=self.precision != "off", cache_enabled=cached)

    def gradients(self, images: Nested, targets: Nested, count: int, *, last: bool) -> tuple[torch.Tensor, Nested]:
        """Add a micro-batch's share to the gradients of the global batch's mean loss.

        All micro-batches of a step have one size and DDP averages over ranks, so the sum of the shares is the mean.

        Args:
            images: the result of ``prepare``.
            targets: classes ``[N]``, or ``[N, K]`` if images are mixed; anything that the loss takes.
            count: micro-batches of this rank in the step.
            last: whether this is the last of them. With the last one, gradients are summed over the ranks.

        Returns the micro-batch's mean loss ``[]`` in float32, and the model's outputs in the run's precision. A
        classifier's outputs are logits ``[N, K]``. Both are detached.

        Raises UnusedParameterError if the last micro-batch gave a parameter no gradient, on the ranks where it did so.
        """
        with contextlib.nullcontext() if last else self._gradients_stay_local():
            with self.phase("forward"):
                with self.autocast():
                    outputs = self.parallel(images)
                loss = self.loss(outputs, targets)
            with self.phase("backward"):
                self.scaler.scale(loss if count == 1 else loss / count).backward()
        if last and (isinstance(self.parallel, DistributedDataParallel) or is_shared_out(self.model)):
            self._check_gradients()
        return loss.detach(), map_tensors(torch.Tensor.detach, outputs)

    def update(self, rate: float, number: int) -> None:
        """Step with the gradients, take the weights into the average, and clear the gradients.

        If fp16's gradients overflow, the weights stay and the scaler lowers its scale. torch's fused optimizers, LARS
        and LAMB see to that on the device; for others the host asks the device before the step. ``skipped`` counts such
        steps. Schedule and average take them as any other, as in timm's loop. All ranks have the same gradients.

        Args:
            rate: learning rate of this step.
            number: this step's number since the run began, 1-based.
        """
        with self.phase("optimizer"):
            set_learning_rate(self.optimizer, rate)
            self.clip_and_step()
            if self.average:
                self.average.update(number)
            self.optimizer.zero_grad(set_to_none=True)

    def clip_and_step(self) -> None:
        """Step with the gradients at the learning rate that is set in the optimizer."""
        clip = self.config.optimizer.clip_grad_norm
        self.scaler.unscale_(self.optimizer)  # before any norm: clipping computes one here, LARS and LAMB later
        if clip > 0:
            norm = total_norm(p.grad for p in self.model.parameters() if p.grad is not None)
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), clip, norm)
        if not self.scaler.is_enabled():
            self.optimizer.step()
            return
        one = torch.ones((), device=self.device)
        before = self.scaler.scale(one)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped.add_(self.scaler.scale(one) < before)

    def _check_gradients(self) -> None:
        """Raise UnusedParameterError if this rank's backward pass left a gradient out of the sum over the ranks.

        DDP itself reports this only in the next forward pass. Before that, this rank would step with gradients that are
        not summed, and its next collective would meet the sum that other ranks still wait for: a raw error of gloo or
        NCCL.
        """
        failed: RuntimeError | None = None
        if isinstance(self.parallel, DistributedDataParallel):
            try:
                self.parallel._check_reducer_finalized()
                return
            except RuntimeError as error:
                failed = error
        without = [name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if failed or without:
            fix = "set requires_grad=False" + ", or write model.find_unused_parameters=true" * bool(failed)
            raise UnusedParameterError(
                f"with {dist.get_world_size()} workers each parameter must get a gradient in each step; of model.name="
                f"{self.config.model.name} {', '.join(without[:3])} got none on rank {dist.get_rank()}. Use it in each "
                f"forward pass, {fix}."
            ) from failed

    def _gradients_stay_local(self) -> contextlib.AbstractContextManager[None]:
        if is_shared_out(self.model):
            return gradients_stay_local(self.model)
        ddp = isinstance(self.parallel, DistributedDataParallel)
        return self.parallel.no_sync() if ddp else contextlib.nullcontext()  # type: ignore[operator]


def placed(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The model on the device, in the run's memory layout. A network with 3-D convolutions keeps its own layout."""
    if any(p.ndim == 5 for p in model.parameters()):
        return model.to(device)
    return model.to(device, memory_format=memory_layout(config))  # type: ignore[call-overload]


def memory_layout(config: TrainConfig) -> torch.memory_format:
    """The memory layout of weights and images."""
    return torch.channels_last if config.model.channels_last else torch.contiguous_format
