"""The images of an epoch that fill no global batch: how many they are, and whether a smaller step should train on them.

A smaller step uses the rate of the large batch, and its images count for more. It is worth that where the images are
many: of digits' 1,437 training images, batch 1,024 leaves out 29 % in each epoch. The bounds are BigBatch's own.
"""

from __future__ import annotations

from bigbatch.train_loop.config.sections import BatchSplit
from bigbatch.train_loop.config.train_config import TrainConfig

KEY = "data.drop_last"
LEFT_OUT_AT_MOST = 0.05
"""Part of the training images. Below it a smaller step would gain little, and cost a second shape of batches."""
SMALLEST_STEP = 0.25
"""Part of the global batch. For a smaller step the best rate is over 4 times lower by the linear rule, 2 by the square
root; spaces search rates mostly within a factor of 4 (``search_spaces.priors.LogNormal``)."""


def left_out(train_size: int, global_size: int) -> int:
    """The images of an epoch that fill no global batch."""
    return train_size % global_size


def suits_smaller_step(train_size: int, global_size: int) -> bool:
    """Whether the images that fill no global batch should make a smaller last step, ``data.drop_last=false``.

    They are then more than a twentieth of the training images, and at least a quarter of a global batch. With fewer
    images than a global batch an epoch has no step at all, which is refused elsewhere.
    """
    images = left_out(train_size, global_size)
    return train_size > global_size and images > LEFT_OUT_AT_MOST * train_size and images >= SMALLEST_STEP * global_size


def with_smaller_step(config: TrainConfig, train_size: int) -> TrainConfig:
    """``config`` with ``data.drop_last=false`` where that suits its batch."""
    suits = suits_smaller_step(train_size, config.batch.global_size)
    return config.replace_keys({KEY: False}) if suits else config


def last_micro_size(train_size: int, batch: BatchSplit) -> int:
    """Images of each micro-batch of a smaller last step (``data.drop_last=false``); 0: there is none.

    It has as many micro-batches as other steps, all of one size, so that the mean of their gradients is the mean over
    its images. Images that do not divide are dropped, fewer than there are micro-batches. BatchNorm needs 2.
    """
    each = left_out(train_size, batch.global_size) // (batch.workers * batch.accumulation_steps)
    return each if each >= 2 else 0


def last_step_in_words(config: TrainConfig, train_size: int, split: BatchSplit) -> str | None:
    """A sentence if a run leaves out many images, or makes a smaller step of few; else None.

    ``split``: the batch over the run's workers.
    """
    batch, images = split.global_size, left_out(train_size, split.global_size)
    in_step = last_micro_size(train_size, split) * split.workers * split.accumulation_steps
    if config.data.drop_last and in_step and suits_smaller_step(train_size, batch):
        part = 100 * images / train_size
        return (
            f"each epoch leaves out {images:,} of the {train_size:,} training images ({part:.0f} %); "
            f"they fill no global batch. --set {KEY}=false makes a smaller step of them"
        )
    if not config.data.drop_last and 0 < in_step < SMALLEST_STEP * batch:
        return (
            f"the last step of each epoch has {in_step:,} images, at the rate that is meant for {batch:,}; "
            f"--set {KEY}=true leaves them out"
        )
    return None
