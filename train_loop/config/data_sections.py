"""The section ``data`` of a ``TrainConfig``, and those within it: ``loader``, ``augment``, ``mix``."""

from __future__ import annotations

from dataclasses import dataclass, field

from bigbatch.train_loop.config.rules import Options, Section, require, require_in_range, require_one_of

LOADERS = ("auto", "ring")
POLICIES = ("none", "trivial", "rand")


@dataclass(frozen=True)
class LoaderConfig(Section, prefix="data.loader."):
    """How batches are read. Only ``name`` may change what is read, and only from one kind of loader to another."""

    name: str = "auto"
    """``ring``: slots in shared memory. ``auto``: in training, packed images of one size that suit and fit are decoded
    once a node and kept on the device, which cuts, shifts and mirrors them (``data/packed/device_source.py``); else the
    ring."""
    workers: int = -1
    """Decoding processes of each training worker; 0 decodes in the training process. -1: all but one of the worker's
    cores (``data/loading/counts.py``)."""
    pin_memory: bool = True
    """On GPUs: page-locked memory for batches, which are copied while others are computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("data.loader.name", self.name, LOADERS)
        require(
            -1 <= self.workers <= 256,
            "data.loader.workers must be 0 to 256, or -1 for all cores but one",
            self.workers,
            "Write -1, or the cores that each worker may use for decoding.",
        )


@dataclass(frozen=True)
class AugmentConfig(Section, prefix="data.augment."):
    """How each training image is changed by itself."""

    enabled: bool = True
    """False: no augmentation at all; the rest of this section and ``data.mix`` then do nothing."""
    min_crop_area: float = 0.08
    """Photographs: least share of the image's area that a random crop has; the largest is 1 (Szegedy et al. 2015, §6;
    MLPerf's is 0.05)."""
    max_crop_ratio: float = 4 / 3
    """Photographs: the width : height of a random crop is between 1 / this and this."""
    policy: str = "none"
    """After crop and flip: ``trivial`` (TrivialAugment Wide, Müller & Hutter 2021) or ``rand`` (RandAugment,
    Cubuk et al. 2020). Not for digits."""
    rand_ops: int = 2
    """rand: operations an image."""
    rand_magnitude: int = 9
    """rand: 0 to 30, as torchvision counts; timm's 0 to 10 times 3."""
    rand_magnitude_std: float = 0.0
    """rand: standard deviation of each operation's magnitude, in the same units; timm's mstd times 3."""
    rand_probability: float = 1.0
    """rand: the probability of each operation; timm's is 0.5."""
    repeats: int = 1
    """Repeated augmentation (Hoffer et al. 2020): the number of differently augmented copies of an image in a global
    batch. An epoch keeps its number of images, so with n copies it sees one n-th of the different images. 1 = off."""
    random_erasing: float = 0.0
    """Part of the training images in which a rectangle gets the mean colour (Zhong et al. 2020)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_range("data.augment.min_crop_area", self.min_crop_area, 0.0, 1.0, open_low=True)
        require_in_range("data.augment.max_crop_ratio", self.max_crop_ratio, 1.0, 16.0)
        require_one_of("data.augment.policy", self.policy, POLICIES)
        require(1 <= self.rand_ops <= 16, "data.augment.rand_ops must be 1 to 16", self.rand_ops, "Write 2.")
        require(
            0 <= self.rand_magnitude <= 30,
            "data.augment.rand_magnitude must be 0 to 30",
            self.rand_magnitude,
            "Write 9.",
        )
        require_in_range("data.augment.rand_magnitude_std", self.rand_magnitude_std, 0.0, 30.0)
        require_in_range("data.augment.rand_probability", self.rand_probability, 0.0, 1.0, open_low=True)
        require(1 <= self.repeats <= 64, "data.augment.repeats must be 1 to 64", self.repeats, "Write 3.")
        require_in_range("data.augment.random_erasing", self.random_erasing, 0.0, 1.0)

    @property
    def copies(self) -> int:
        """Copies of an image in a global batch; 1 without augmentation, because they would not differ."""
        return self.repeats if self.enabled else 1


@dataclass(frozen=True)
class MixConfig(Section, prefix="data.mix."):
    """How training images of a micro-batch are mixed with each other."""

    mixup_alpha: float = 0.0
    """Parameter of the Beta distribution of mixup's share (Zhang et al. 2018); 0 = off."""
    cutmix_alpha: float = 0.0
    """The same for cutmix (Yun et al. 2019); 0 = off. With both, each micro-batch takes one of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_range("data.mix.mixup_alpha", self.mixup_alpha, 0.0, 100.0)
        require_in_range("data.mix.cutmix_alpha", self.cutmix_alpha, 0.0, 100.0)


@dataclass(frozen=True)
class DataConfig(Section, prefix="data."):
    """Which images, of which size, in which batches."""

    name: str = "digits"
    """A data set's name (``digits``) or the path of an image folder with ``train/`` and ``val/``."""
    image_size: int = 0
    """Pixels a side; 0 = the data set's own: 32 for digits, else that of images of at most 64 pixels, or 224."""
    val_image_size: int = 0
    """Pixels a side in validation; 0 = ``image_size``. A little more than in training is best (Touvron et al. 2019)."""
    val_crop: float = 0.875
    """Photographs: side of the central crop of validation, as a part of the image's shorter side: 224 of 256."""
    subset: float = 1.0
    """Part of the training images to use, of each class alike; validation stays whole."""
    val_part: float = 0.0
    """Part of the training images of each class that is held out for validation, if an image folder has no images for
    it. The same images with any seed, and those of ``bigbatch pack --val-part``. 0 = none."""
    holdout: float = 0.0
    """Part of the validation images of each class that makes no choice: ``holdout_top1`` is measured on it, and
    ``val_top1`` on the others. The same images with any seed. 0 = none."""
    drop_last: bool = True
    """Leave out, in each epoch, the images that fill no global batch. False: they make a smaller last step, at the
    large one's rate."""
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    mix: MixConfig = field(default_factory=MixConfig)
    options: Options = field(default_factory=Options)
    """Arguments of a data set of the user's own: ``data.options.points=1024``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            bool(self.name.strip()), "data.name must be a data set's name or a path", self.name, "Write e.g. digits."
        )
        require(0 < self.subset <= 1, "data.subset must be above 0 and at most 1", self.subset, "Write e.g. 0.1.")
        require_in_range("data.val_crop", self.val_crop, 0.25, 1.0)  # images are resized to image_size / val_crop
        for name, part in (("val_part", self.val_part), ("holdout", self.holdout)):
            require(0 <= part < 1, f"data.{name} must be at least 0 and below 1", part, "Write e.g. 0.5.")
        for name, usual in (("image_size", "the data set's own"), ("val_image_size", "as in training")):
            size, rule = getattr(self, name), f"data.{name} must be 0 ({usual}) or 8 to 1024 pixels"
            require(size == 0 or 8 <= size <= 1024, rule, size, "Write e.g. 224.")
