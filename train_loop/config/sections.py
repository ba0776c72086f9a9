"""The sections of a ``TrainConfig``: model, data, batch, optimiser, schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bigbatch.train_loop.config.rules import ConfigError, ConflictError, choice, finite, require

OPTIMIZERS = ("sgd", "lars", "lamb", "adamw")
SCHEDULES = ("cosine", "poly", "linear", "one_cycle", "step", "constant")
STEMS = ("auto", "imagenet", "small", "small_pool")
LOADERS = ("auto", "ring", "torchvision")
ON_BAD_IMAGE = ("fail", "skip")
LARS_MOMENTUM = ("in", "out")
AUTO_AUGMENT = ("none", "trivial", "rand")

DEFAULT_MICRO_SIZE = 256
"""Bound of the automatic micro-batch where nobody set or measured one."""


@dataclass(frozen=True)
class ModelConfig:
    """Which network."""

    name: str = "resnet50"
    """A torchvision classification model, e.g. ``resnet50``; ``auto`` is resolved by the plan."""
    stem: str = "auto"
    """``imagenet`` 7×7/2 + max-pool; ``small`` 3×3/1, no pool (He et al. 2016, CIFAR);
    ``small_pool`` 3×3/2 + max-pool, for small scans that were enlarged; ``auto`` by image size."""
    zero_init_last_gamma: bool = True
    """Start residual blocks as identity (Goyal et al. 2017, §5.1)."""
    sync_bn: bool = False
    """BatchNorm statistics over all workers instead of per micro-batch."""
    channels_last: bool = True
    activation_checkpointing: bool = False
    """Residual blocks keep only their input and compute the rest again in the backward pass: less
    memory for about a third more time (Chen et al. 2016). ResNets."""
    compile: bool = False
    """Training's forward and backward pass through ``torch.compile``."""

    def __post_init__(self) -> None:
        choice("model.stem", self.stem, STEMS)
        require(bool(self.name), "model.name must name a network", self.name, "Write e.g. resnet50.")


@dataclass(frozen=True)
class DataConfig:
    """Which images."""

    name: str = "digits"
    """A data set's name (``digits``) or the path of an image folder with ``train/`` and ``val/``."""
    image_size: int = 0
    """Pixels a side; 0 = the data set's own (32 for digits, 224 for image folders)."""
    val_image_size: int = 0
    """Of validation; 0 = ``image_size``. A little more than in training is best (Touvron et al. 2019, FixRes)."""
    progressive_from: int = 0
    """Progressive resizing: pixels a side in the first epochs, a multiple of 32; ``image_size`` is then the last ones'.
    0 = off."""
    progressive_start: int = 0
    """Up to this epoch, counted from 0, the size stays ``progressive_from``."""
    progressive_end: int = 0
    """From this epoch on it is ``image_size``; in between on a line, in multiples of 32."""
    augment: bool = True
    loader_workers: int = -1
    """Decoding processes a worker; 0 decodes in the training process. -1 begins with a worker's cores but one and
    keeps as many as an epoch has shown to be enough (``tuning.py``)."""
    loader_slots: int = 0
    """Batches that the ring of a worker holds, those that are being trained on and those that are read ahead; 0 = 8 or
    what the processes need, within an eighth of the worker's memory (``slots.py``). Fewer than 4 are 4."""
    loader: str = "auto"
    """How batches come: ``ring`` of slots in shared memory, or ``torchvision``'s ``ImageFolder`` and transforms
    behind torch's DataLoader, for comparison (image folders only). ``auto`` is ``ring``."""
    prefetch_factor: int = 2
    """Batches that each process of the torchvision loader reads ahead."""
    persistent_workers: bool = True
    """Keep the torchvision loader's processes from epoch to epoch; the ring always does."""
    pin_memory: bool = True
    """On GPUs: page-locked memory for batches."""
    non_blocking: bool = True
    """On GPUs: copy the next batch while this one is computed; needs ``pin_memory``."""
    drop_last: bool = True
    """Leave out, in each epoch, the images that fill no global batch. False: they make a smaller last step, at the
    large one's rate."""
    on_bad_image: str = "fail"
    """``skip``: an image that cannot be read is replaced in training by the next one of its micro-batch, left out
    in validation, and counted."""
    subset: float = 1.0
    """Part of the training images to use, of each class alike; validation stays whole."""
    auto_augment: str = "none"
    """After crop and flip: ``trivial`` (TrivialAugment Wide, Müller & Hutter 2021) or ``rand`` (RandAugment,
    Cubuk et al. 2020). Not for digits."""
    rand_ops: int = 2
    """rand: operations an image."""
    rand_magnitude: int = 9
    """rand: 0 to 30, as torchvision counts; timm's 0 to 10 times 3."""
    rand_magnitude_std: float = 0.0
    """rand: standard deviation of each operation's magnitude, in the same units; timm's mstd times 3."""
    rand_probability: float = 1.0
    """rand: of each operation to take place; timm's is 0.5."""
    augment_repeats: int = 1
    """Repeated augmentation (Hoffer et al. 2020): so many differently augmented copies of an image in a global batch.
    An epoch keeps its number of images: it sees one in so many of the different ones. 1 = off."""
    test_flip: bool = False
    """Validation takes the mean of the logits of an image and of its mirror image."""
    random_erasing: float = 0.0
    """Part of the training images of which a rectangle becomes the mean colour (Zhong et al. 2020)."""
    mixup_alpha: float = 0.0
    """Of the Beta distribution of mixup's share (Zhang et al. 2018); 0 = off."""
    cutmix_alpha: float = 0.0
    """Of cutmix's (Yun et al. 2019); 0 = off. With both, each micro-batch takes one of them."""

    def __post_init__(self) -> None:
        require(
            bool(self.name.strip()), "data.name must be a data set's name or a path", self.name, "Write e.g. digits."
        )
        require(
            self.image_size == 0 or 8 <= self.image_size <= 1024,
            "data.image_size must be 0 (the data set's own) or 8 to 1024 pixels",
            self.image_size,
            "Write e.g. 224.",
        )
        require(
            self.val_image_size == 0 or 8 <= self.val_image_size <= 1024,
            "data.val_image_size must be 0 (as in training) or 8 to 1024 pixels",
            self.val_image_size,
            "Write e.g. 224.",
        )
        require(
            self.progressive_from == 0 or (32 <= self.progressive_from <= 1024 and self.progressive_from % 32 == 0),
            "data.progressive_from must be 0 (off) or a multiple of 32 up to 1024 pixels",
            self.progressive_from,
            "Write e.g. 160.",
        )
        if self.progressive_from and not 0 <= self.progressive_start < self.progressive_end:
            raise ConflictError(
                "data.progressive_start must be at least 0 and below data.progressive_end; got "
                f"{(self.progressive_start, self.progressive_end)}. Write e.g. 65 and 76 of 88 epochs."
            )
        choice("data.auto_augment", self.auto_augment, AUTO_AUGMENT)
        require(1 <= self.rand_ops <= 16, "data.rand_ops must be 1 to 16", self.rand_ops, "Write 2.")
        require(0 <= self.rand_magnitude <= 30, "data.rand_magnitude must be 0 to 30", self.rand_magnitude, "Write 9.")
        finite("data.rand_magnitude_std", self.rand_magnitude_std, 0.0, 30.0)
        finite("data.rand_probability", self.rand_probability, 0.0, 1.0, open_low=True)
        require(
            1 <= self.augment_repeats <= 64, "data.augment_repeats must be 1 to 64", self.augment_repeats, "Write 3."
        )
        require(
            -1 <= self.loader_workers <= 256,
            "data.loader_workers must be 0 to 256, or -1 for as many as a run needs and its cores allow",
            self.loader_workers,
            "Write -1, or the cores that each worker may use for decoding.",
        )
        require(
            0 <= self.loader_slots <= 1024,
            "data.loader_slots must be 0 (as many as are good) or 4 to 1024 batches",
            self.loader_slots,
            "Write 0, or e.g. 16.",
        )
        choice("data.loader", self.loader, LOADERS)
        choice("data.on_bad_image", self.on_bad_image, ON_BAD_IMAGE)
        require(
            1 <= self.prefetch_factor <= 64, "data.prefetch_factor must be 1 to 64", self.prefetch_factor, "Write 2."
        )
        if self.loader == "torchvision":
            for name, off in (("auto_augment", "none"), ("augment_repeats", 1), ("progressive_from", 0)):
                if getattr(self, name) != off:
                    raise ConflictError(
                        f"the torchvision loader is the plain pipeline; got data.{name}={getattr(self, name)!r} with "
                        f"data.loader=torchvision. Write data.loader=ring or data.{name}={off}."
                    )
        finite("data.random_erasing", self.random_erasing, 0.0, 1.0)
        finite("data.mixup_alpha", self.mixup_alpha, 0.0, 100.0)
        finite("data.cutmix_alpha", self.cutmix_alpha, 0.0, 100.0)
        require(0 < self.subset <= 1, "data.subset must be above 0 and at most 1", self.subset, "Write e.g. 0.1.")

    @property
    def copies(self) -> int:
        """Of an image in a global batch; without augmentation they would not differ."""
        return self.augment_repeats if self.augment else 1


@dataclass(frozen=True)
class BatchSplit:
    """How one optimiser step is cut: ``workers × accumulation_steps × micro_size`` images."""

    workers: int
    accumulation_steps: int
    micro_size: int

    @property
    def global_size(self) -> int:
        return self.workers * self.accumulation_steps * self.micro_size


@dataclass(frozen=True)
class BatchConfig:
    """Images an optimiser step, and how they are cut."""

    global_size: int = 256
    """Images an optimiser step over all workers and accumulation steps."""
    micro_size: int = 0
    """Images a forward pass on one worker, also the ghost batch of BatchNorm; 0 = the largest
    divisor of the worker's share that is at most ``max_micro_size``."""
    max_micro_size: int = DEFAULT_MICRO_SIZE
    """Bound for the automatic micro-batch: what the device's memory holds; 0 = measured on a GPU
    (``memory_probe``), ``DEFAULT_MICRO_SIZE`` on a CPU."""

    def __post_init__(self) -> None:
        require(self.global_size >= 2, "batch.global_size must be at least 2", self.global_size, "Write e.g. 1024.")
        require(self.micro_size >= 0, "batch.micro_size must be 0 (automatic) or more", self.micro_size, "Write 0.")
        require(self.max_micro_size >= 0, "batch.max_micro_size must be 0 (measured) or more", self.max_micro_size,
                 "Write 256.")  # fmt: skip
        if self.micro_size and self.global_size % self.micro_size:
            raise ConflictError(
                f"batch.micro_size must divide batch.global_size; got {self.micro_size} and {self.global_size}. "
                f"Use micro_size={math.gcd(self.micro_size, self.global_size)}."
            )

    def split(self, workers: int) -> BatchSplit:
        """Cut the global batch over ``workers``; raises ConfigError where it does not divide."""
        require(workers >= 1, "workers must be at least 1", workers, "Write --workers 1.")
        if self.global_size % workers:
            lower = self.global_size // workers * workers
            fix = f"Use batch.global_size={lower or workers} or another number of workers."
            raise ConfigError(
                f"batch.global_size must divide over the workers; got {self.global_size} over {workers}. {fix}"
            )
        share = self.global_size // workers
        if self.micro_size:
            if share % self.micro_size:
                raise ConfigError(
                    f"batch.global_size must divide over workers × micro_size; got {self.global_size} over "
                    f"{workers} × {self.micro_size}. Use micro_size={math.gcd(share, self.micro_size)}."
                )
            return BatchSplit(workers, share // self.micro_size, self.micro_size)
        micro = next(m for m in range(min(share, self.max_micro_size or DEFAULT_MICRO_SIZE), 0, -1) if share % m == 0)
        return BatchSplit(workers, share // micro, micro)


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimiser; fields that it does not use are ignored and said so by ``used_fields``."""

    name: str = "sgd"
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
    no_decay_lr_factor: float = 1.0
    """Rate of BatchNorm parameters and biases, as a part of that of the other parameters."""
    clip_grad_norm: float = 0.0
    """Global gradient norm is clipped to this before the step; 0 = off. LAMB's papers use 1."""

    def __post_init__(self) -> None:
        choice("optimizer.name", self.name, OPTIMIZERS)
        choice("optimizer.lars_momentum", self.lars_momentum, LARS_MOMENTUM)
        finite("optimizer.peak_lr", self.peak_lr, 0.0, 1e4, open_low=True)
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"optimizer.{name} must be at least 0 and below 1", value, "Write e.g. 0.9.")
        finite("optimizer.eps", self.eps, 0.0, 1.0)
        finite("optimizer.weight_decay", self.weight_decay, 0.0, 10.0)
        finite("optimizer.trust_coefficient", self.trust_coefficient, 0.0, 10.0, open_low=True)
        finite("optimizer.lars_eps", self.lars_eps, 0.0, 1.0)
        finite("optimizer.no_decay_lr_factor", self.no_decay_lr_factor, 0.0, 1e4)
        finite("optimizer.clip_grad_norm", self.clip_grad_norm, 0.0)
        if self.name == "sgd" and self.nesterov and self.momentum == 0.0:
            raise ConflictError(
                "Nesterov needs momentum above 0; got optimizer.momentum=0.0. Set momentum or nesterov=false."
            )


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over steps: linear warmup to the peak, then a decay to ``end_lr_factor``·peak."""

    name: str = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    """In place of ``warmup_epochs``; 0 = those."""
    warmup_start_factor: float = 0.0
    """Learning rate before the first step, as a part of the peak."""
    end_lr_factor: float = 0.0
    power: float = 2.0
    """poly: (1 − t)^power; MLPerf uses 2."""
    step_epochs: tuple[float, ...] = ()
    """step: epochs at which the rate is multiplied by ``step_factor``."""
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        choice("schedule.name", self.name, SCHEDULES)
        finite("schedule.warmup_epochs", self.warmup_epochs, 0.0)
        require(self.warmup_steps >= 0, "schedule.warmup_steps must be at least 0", self.warmup_steps, "Write 0.")
        if self.warmup_steps and self.warmup_epochs:
            raise ConflictError(
                f"warmup is in steps or in epochs; got schedule.warmup_steps={self.warmup_steps} and "
                f"warmup_epochs={self.warmup_epochs:g}. Set one of them to 0."
            )
        finite("schedule.warmup_start_factor", self.warmup_start_factor, 0.0, 1.0)
        finite("schedule.end_lr_factor", self.end_lr_factor, 0.0, 1.0)
        finite("schedule.power", self.power, 0.0, 10.0, open_low=True)
        finite("schedule.step_factor", self.step_factor, 0.0, 1.0)
        object.__setattr__(self, "step_epochs", tuple(float(e) for e in self.step_epochs))
        if list(self.step_epochs) != sorted(self.step_epochs) or any(e <= 0 for e in self.step_epochs):
            raise ConfigError(
                f"schedule.step_epochs must rise and be above 0; got {self.step_epochs!r}. Write e.g. [30, 60, 80]."
            )
        if self.name == "step" and not self.step_epochs:
            raise ConflictError("schedule step needs schedule.step_epochs; got none. Write e.g. [30, 60, 80].")
