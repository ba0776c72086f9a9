"""The sections of a ``TrainConfig`` except ``data``: model, batch, optimiser, schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bigbatch.train_loop.config.rules import (
    ConfigError,
    ConflictError,
    Options,
    Section,
    check_component,
    require,
    require_in_range,
    require_one_of,
)

OPTIMIZERS = ("sgd", "lars", "lamb", "adamw")
SCHEDULES = ("cosine", "poly", "linear", "step", "constant")
PARALLEL = ("ddp", "fsdp2")
COMPILE = ("off", "on", "auto")
STEMS = ("auto", "imagenet", "small", "small_pool")
LARS_MOMENTUM = ("in", "out")
LARC = ("off", "clip", "trust")

DEFAULT_MICRO_SIZE = 256
"""Bound of the automatic micro-batch if none is set."""
LEAST_MICRO_SIZE = 2
"""The smallest automatic micro-batch. BatchNorm cannot train with one value per channel, and one image with a map of
1×1 has no more. To train another network with single images, write ``micro_size=1``."""
SMALLEST_PART = 8
"""An automatic micro-batch has at least 1/8 of the images of the largest one. Global batch 514 would otherwise take 257
micro-batches of two images: slow, and with statistics of BatchNorm that are mostly noise."""


@dataclass(frozen=True)
class ModelConfig(Section, prefix="model."):
    """Which network."""

    name: str = "resnet50"
    """A torchvision classification model, e.g. ``resnet50``; ``timm/NAME``; a function of the user's own,
    ``FILE.py:FUNCTION``; ``auto`` is resolved by the plan."""
    stem: str = "auto"
    """``imagenet`` 7×7/2 + max-pool; ``small`` 3×3/1, no pool (He et al. 2016, CIFAR);
    ``small_pool`` 3×3/2 + max-pool, for small scans that were enlarged; ``auto`` by image size."""
    zero_init_last_gamma: bool = True
    """Start residual blocks as identity (Goyal et al. 2017, §5.1)."""
    sync_bn: bool = False
    """BatchNorm statistics over all workers instead of per micro-batch."""
    channels_last: bool = True
    activation_checkpointing: bool = False
    """Residual blocks of ResNets, else segments of each ``nn.Sequential``, keep only their input and compute the rest
    again in the backward pass: less memory for about a third more time (Chen et al. 2016)."""
    compile: str = "off"
    """``on``: training's forward and backward pass through ``torch.compile``; ``auto``: one GPU replays its step as a
    CUDA graph, if possible (``loop/replayed_step.py``)."""
    find_unused_parameters: bool = False
    """Several workers: DDP looks in each step for parameters without a gradient, e.g. of layers that are left out at
    random, and continues without them. This costs time. Without it, a step must give each parameter a gradient."""
    parallel: str = "ddp"
    """Several workers: ``ddp``, each has the whole network; ``fsdp2``, each keeps a part of the weights, gradients and
    optimiser state (``fully_shard``). One worker has it whole in any case."""
    options: Options = field(default_factory=Options)
    """Arguments of a model of the user's own or of timm's: ``model.options.width=64``."""
    pretrained: str = ""
    """Weights to begin with: a file (``.pth``, ``.safetensors``). Nothing is downloaded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("model.stem", self.stem, STEMS)
        require_one_of("model.parallel", self.parallel, PARALLEL)
        require_one_of("model.compile", self.compile, COMPILE)
        if self.parallel == "fsdp2" and self.find_unused_parameters:
            raise ConflictError(
                "model.parallel=fsdp2 needs a gradient of each parameter in each step; got "
                "model.find_unused_parameters=true. Write it false, or model.parallel=ddp."
            )
        require(bool(self.name), "model.name must name a network", self.name, "Write e.g. resnet50.")


@dataclass(frozen=True)
class BatchSplit:
    """How one optimiser step is cut: ``workers × accumulation_steps × micro_size`` images."""

    workers: int
    accumulation_steps: int
    micro_size: int

    @property
    def global_size(self) -> int:
        """Images an optimiser step, over all workers."""
        return self.workers * self.accumulation_steps * self.micro_size


@dataclass(frozen=True)
class BatchConfig(Section, prefix="batch."):
    """Images an optimiser step, and how they are cut."""

    global_size: int = 256
    """Images an optimiser step over all workers and accumulation steps."""
    micro_size: int = 0
    """Images a forward pass on one worker, also the ghost batch of BatchNorm; 0 = the largest divisor of the worker's
    share that is at most ``max_micro_size``; it must be at least 2, and not much smaller than that bound."""
    max_micro_size: int = DEFAULT_MICRO_SIZE
    """Bound for the automatic micro-batch. One that does not fit into the device's memory is halved (``oom_retry``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.global_size >= 2, "batch.global_size must be at least 2", self.global_size, "Write e.g. 1024.")
        require(self.micro_size >= 0, "batch.micro_size must be 0 (automatic) or more", self.micro_size, "Write 0.")
        require(self.max_micro_size >= 1, "batch.max_micro_size must be 1 or more", self.max_micro_size, "Write 256.")
        if self.micro_size and self.global_size % self.micro_size:
            raise ConflictError(
                f"batch.micro_size must divide batch.global_size; got {self.micro_size} and {self.global_size}. "
                f"Use micro_size={math.gcd(self.micro_size, self.global_size)}."
            )

    def split(self, workers: int) -> BatchSplit:
        """Cut the global batch over ``workers``.

        Raises ConfigError where it does not divide, or only into automatic micro-batches of few images.
        """
        require(workers >= 1, "workers must be at least 1", workers, "Write --workers 1.")
        bound = self.max_micro_size
        lower = divisible(self.global_size, workers, bound)
        if self.global_size % workers:
            raise ConfigError(
                f"batch.global_size must divide over the workers; got {self.global_size} over {workers}. "
                f"Use batch.global_size={lower} or another number of workers."
            )
        share = self.global_size // workers
        if self.micro_size:
            if share % self.micro_size:
                raise ConfigError(
                    f"batch.global_size must divide over workers × micro_size; got {self.global_size} over "
                    f"{workers} × {self.micro_size}. Use micro_size={math.gcd(share, self.micro_size)}."
                )
            return BatchSplit(workers, share // self.micro_size, self.micro_size)
        least = least_micro_size(share, bound)
        micro = next(m for m in range(min(share, bound), 0, -1) if share % m == 0)
        if micro < least:
            raise ConfigError(
                f"batch.global_size must divide into micro-batches of {least} to {bound} images on each worker; got "
                f"{self.global_size} over {workers}. Use batch.global_size={lower}, or batch.micro_size={micro} if the "
                "network can train with so few images at a time."
            )
        return BatchSplit(workers, share // micro, micro)


def least_micro_size(share: int, max_micro_size: int) -> int:
    """The smallest automatic micro-batch for a worker's share of the global batch."""
    least = min(LEAST_MICRO_SIZE, max_micro_size)
    return max(least, math.ceil(max_micro_size / SMALLEST_PART) if share > max_micro_size else 1)


def divisible(batch: int, workers: int, max_micro_size: int) -> int:
    """The largest batch up to ``batch`` that divides into workers × accumulation steps × equal micro-batches, none of
    them much smaller than ``max_micro_size``; at least two images for each worker."""
    share = max(batch // workers, LEAST_MICRO_SIZE)
    if share & (share - 1) == 0:
        return share * workers  # a power of two, in micro-batches of at least max_micro_size / 2
    steps = min(math.ceil(share / max_micro_size), share // min(LEAST_MICRO_SIZE, max_micro_size))
    return share // steps * steps * workers


@dataclass(frozen=True)
class OptimizerConfig(Section, prefix="optimizer."):
    """Which optimiser. Fields that it does not use are ignored."""

    name: str = "sgd"
    """sgd, lars, lamb, adamw; or a function of the user's own, ``FILE.py:FUNCTION``."""
    peak_lr: float = 0.1
    """Learning rate after warmup, for the whole global batch (no hidden scaling)."""
    momentum: float = 0.9
    """sgd and lars."""
    nesterov: bool = True
    """sgd and lars."""
    beta1: float = 0.9
    """lamb and adamw."""
    beta2: float = 0.999
    """lamb and adamw."""
    eps: float = 1e-6
    """lamb and adamw: added to the root of the second moment."""
    weight_decay: float = 5e-5
    """Not applied to BatchNorm parameters and biases. sgd, lars: coupled (L2); lamb, adamw: decoupled."""
    trust_coefficient: float = 0.001
    """lars: η of You et al. 2017."""
    lars_momentum: str = "in"
    """lars: learning rate ``in`` the momentum buffer (paper, MLPerf) or ``out`` (NVIDIA, timm)."""
    lars_eps: float = 0.0
    """lars: added to the denominator of the trust ratio."""
    larc: str = "off"
    """lars: NVIDIA's LARC, with momentum ``out``: ``clip``, a layer's rate is at most the schedule's; ``trust``, it is
    multiplied by it."""
    min_trust_ratio: float = 0.0
    """lamb: lower bound of the trust ratio; DeepSpeed's is 0.01."""
    max_trust_ratio: float = 0.0
    """lamb: upper bound; 0 = none. DeepSpeed's is 10, LAMBC's 1."""
    nvlamb: bool = False
    """lamb: BatchNorm parameters and biases have a trust ratio too (apex's ``use_nvlamb``)."""
    pre_normalise: bool = False
    """lamb: the whole gradient is divided by its norm before each step (NVIDIA's NVLAMB)."""
    bias_correction: bool = True
    """lamb: divide the moments by 1 − β^t."""
    no_decay_lr_factor: float = 1.0
    """Rate of BatchNorm parameters and biases, as a part of that of the other parameters."""
    clip_grad_norm: float = 0.0
    """Global gradient norm is clipped to this before the step; 0 = off. LAMB's papers use 1."""
    options: Options = field(default_factory=Options)
    """Arguments of an optimiser of the user's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_component("optimizer.name", self.name, OPTIMIZERS)
        require_one_of("optimizer.lars_momentum", self.lars_momentum, LARS_MOMENTUM)
        require_one_of("optimizer.larc", self.larc, LARC)
        require_in_range("optimizer.peak_lr", self.peak_lr, 0.0, 1e4, open_low=True)
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"optimizer.{name} must be at least 0 and below 1", value, "Write e.g. 0.9.")
        require_in_range("optimizer.eps", self.eps, 0.0, 1.0)
        require_in_range("optimizer.weight_decay", self.weight_decay, 0.0, 10.0)
        require_in_range("optimizer.trust_coefficient", self.trust_coefficient, 0.0, 10.0, open_low=True)
        require_in_range("optimizer.lars_eps", self.lars_eps, 0.0, 1.0)
        for name in ("min_trust_ratio", "max_trust_ratio"):
            require_in_range(f"optimizer.{name}", getattr(self, name), 0.0, 1e6)
        if 0.0 < self.max_trust_ratio < self.min_trust_ratio:
            raise ConflictError(
                f"optimizer.min_trust_ratio must not exceed optimizer.max_trust_ratio; got {self.min_trust_ratio:g} "
                f"and {self.max_trust_ratio:g}. Write min_trust_ratio=0, or max_trust_ratio=0 for no upper bound."
            )
        require_in_range("optimizer.no_decay_lr_factor", self.no_decay_lr_factor, 0.0, 1e4)
        require_in_range("optimizer.clip_grad_norm", self.clip_grad_norm, 0.0)
        if self.name == "sgd" and self.nesterov and self.momentum == 0.0:
            raise ConflictError(
                "Nesterov needs momentum above 0; got optimizer.momentum=0.0. Set momentum or nesterov=false."
            )


@dataclass(frozen=True)
class ScheduleConfig(Section, prefix="schedule."):
    """Learning rate over steps: linear warmup to the peak, then a decay to ``end_lr_factor``·peak."""

    name: str = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    """Replaces ``warmup_epochs``, if it is not 0."""
    warmup_start_factor: float = 0.0
    """Learning rate before the first step, as a part of the peak."""
    end_lr_factor: float = 0.0
    power: float = 2.0
    """poly: (1 − t)^power; MLPerf uses 2."""
    step_epochs: tuple[float, ...] = ()
    """step: epochs at which the rate is multiplied by ``step_factor``."""
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("schedule.name", self.name, SCHEDULES)
        require_in_range("schedule.warmup_epochs", self.warmup_epochs, 0.0)
        require(self.warmup_steps >= 0, "schedule.warmup_steps must be at least 0", self.warmup_steps, "Write 0.")
        if self.warmup_steps and self.warmup_epochs:
            raise ConflictError(
                f"warmup is in steps or in epochs; got schedule.warmup_steps={self.warmup_steps} and "
                f"warmup_epochs={self.warmup_epochs:g}. Set one of them to 0."
            )
        require_in_range("schedule.warmup_start_factor", self.warmup_start_factor, 0.0, 1.0)
        require_in_range("schedule.end_lr_factor", self.end_lr_factor, 0.0, 1.0)
        require_in_range("schedule.power", self.power, 0.0, 10.0, open_low=True)
        require_in_range("schedule.step_factor", self.step_factor, 0.0, 1.0)
        if list(self.step_epochs) != sorted(self.step_epochs) or not all(e > 0 for e in self.step_epochs):
            raise ConfigError(
                f"schedule.step_epochs must rise and be above 0; got {self.step_epochs!r}. Write e.g. [30, 60, 80]."
            )
        if self.name == "step" and not self.step_epochs:
            raise ConflictError("schedule step needs schedule.step_epochs; got none. Write e.g. [30, 60, 80].")


@dataclass(frozen=True)
class TrainableConfig(Section, prefix="trainable."):
    """A whole training function of the user's own, in place of the training loop."""

    name: str = ""
    """``FILE.py:FUNCTION``, with an absolute path; empty: the training loop trains."""
    options: Options = field(default_factory=Options)
    """The function's ``config``, without ``epochs`` and ``seed``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options and not self.name:  # no file keeps them
            raise ConflictError(
                f"trainable.options are arguments of the function trainable.name; got {dict(self.options)!r} without a "
                "name. Write trainable.name too, or leave them out."
            )
