"""The facts of a data set for models, plans and search spaces. No torch here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bigbatch.train_loop.config import ConfigError

SMALL_IMAGE_SIZE = 64
"""Pixels a side up to which the 7×7/2 stem with max-pool throws away too much."""
PHOTOGRAPH_SIZE = 224
"""Pixels a side to which larger images are cropped, ImageNet's."""


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set; sizes in images and pixels."""

    name: str
    path: str | None
    """The image folder, or ``FILE.py:FUNCTION``; None if the images come with a package."""
    train_size: int
    val_size: int
    """Validation images whose accuracy is ``val_top1``."""
    num_classes: int
    """0: not known, of a data set of the user's own."""
    image_size: int
    """Pixels a side, as the model sees them in training. 0: a data set of the user's own without square images."""
    channels: int
    class_names: tuple[str, ...]
    """In the order of the labels."""
    stem: str
    """What ``model.stem=auto`` means here."""
    val_image_size: int = 0
    """Pixels a side in validation, if they differ; else 0."""
    holdout_size: int = 0
    """Further validation images, whose accuracy is ``holdout_top1``: see ``data.holdout``."""

    input_shape: tuple[int, ...] = ()
    """Shape of the first item's inputs, if a data set of the user's own gives one tensor; else empty."""
    are_classes: bool = True
    """Whether targets are classes, ``[N]`` whole numbers, so that top-1 can be counted."""
    largest_side: int = 0
    """Pixels of the longer side of the largest image, of a folder among a few; 0: not known."""
    content: str = ""
    """A digest of what the images are: of an image folder all their names, of a packed set its shards' checksums.
    Empty: not known."""
    some_bytes: tuple[int, ...] = ()
    """Sizes in bytes of a few images of a folder, for a plan: other images may have the same names."""
    notes: tuple[str, ...] = ()
    """For an image folder: which files and folders are left out, and which part validates if not val/."""

    def with_holdout(self, part: float) -> DataInfo:
        """This data set with its validation images divided: ``part`` of them report and make no choice.

        Raises:
            ConfigError: one of the two parts has fewer images than there are classes.
        """
        reports = round(self.val_size * part)
        chooses = self.val_size - reports
        if part and min(chooses, reports) < max(self.num_classes, 1):
            raise ConfigError(
                "data.holdout must leave an image of each class in both parts of the validation images; got "
                f"{part:g}, which makes {chooses} and {reports} of {self.val_size} for {self.num_classes} classes. "
                f"Write data.holdout={0.5 if self.val_size >= 2 * self.num_classes else 0}."
            )
        return dataclasses.replace(self, val_size=chooses, holdout_size=reports)

    def check_images(self, what: str) -> None:
        """Raise ConfigError unless the items are square colour images with classes, which ``what`` needs."""
        if not (self.num_classes and self.channels == 3 and self.image_size and self.are_classes):
            got = f"inputs {list(self.input_shape) or 'of several tensors'}, {self.num_classes or 'unknown'} classes"
            got += "" if self.are_classes else ", targets that are no whole numbers"
            raise ConfigError(
                f"{what} needs images [3, H, H] and a known number of classes; got {got} from data.name={self.path}. "
                "Write --model FILE.py:FUNCTION, or return an object with num_classes and classes as int."
            )

    def steps_per_epoch(self, global_size: int) -> int:
        """Optimizer steps an epoch of whole global batches; raises ConfigError where there is none."""
        steps = self.train_size // global_size
        if steps < 1:
            power = 1 << (self.train_size.bit_length() - 1)
            raise ConfigError(
                f"batch.global_size must be at most the {self.train_size} training images of {self.name}; "
                f"got {global_size}. Use batch.global_size={power}."
            )
        return steps
