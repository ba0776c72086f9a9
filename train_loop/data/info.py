"""The facts of a data set for models, plans and search spaces. No torch here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bigbatch.train_loop.config import ConfigError

SMALL_IMAGE_SIZE = 64
"""Pixels a side up to which the 7×7/2 stem with max-pool throws away too much."""


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set; sizes in images and pixels."""

    name: str
    path: str | None
    """The image folder; None if the images come with a package."""
    train_size: int
    val_size: int
    """Validation images whose accuracy is ``val_top1``."""
    num_classes: int
    image_size: int
    """Pixels a side, as the model sees them; with progressive resizing those of the last epochs, the most."""
    channels: int
    class_names: tuple[str, ...]
    """In the order of the labels."""
    stem: str
    """What ``model.stem=auto`` means here."""
    other_sizes: tuple[int, ...] = ()
    """Side lengths in pixels of validation and of other epochs, if they differ from ``image_size``."""
    holdout_size: int = 0
    """Further validation images, whose accuracy is ``holdout_top1``: see ``data.holdout``."""

    def with_holdout(self, part: float) -> DataInfo:
        """This data set with its validation images divided: ``part`` of them report and make no choice.

        Raises:
            ConfigError: one of the two parts has fewer images than there are classes.
        """
        reports = round(self.val_size * part)
        chooses = self.val_size - reports
        if part and min(chooses, reports) < self.num_classes:
            raise ConfigError(
                "data.holdout must leave an image of each class in both parts of the validation images; got "
                f"{part:g}, which makes {chooses} and {reports} of {self.val_size} for {self.num_classes} classes. "
                f"Write data.holdout={0.5 if self.val_size >= 2 * self.num_classes else 0}."
            )
        return dataclasses.replace(self, val_size=chooses, holdout_size=reports)

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
