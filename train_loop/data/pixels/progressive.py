"""Progressive resizing: the training images' size as a function of the epoch. No torch."""

from __future__ import annotations

from bigbatch.train_loop.config import ConfigError, DataConfig

MULTIPLE = 32
"""Pixels: what ResNets reduce an image by; FFCV's step, too."""


def train_image_size(config: DataConfig, last: int, epoch: int) -> int:
    """Pixels a side in an epoch, counted from 0.

    ``progressive_from`` up to epoch ``progressive_start``, ``last`` from ``progressive_end`` on, on a line in between,
    rounded to a multiple of 32: ``get_resolution`` of FFCV's ImageNet training (Leclerc et al. 2023).
    """
    first, start, end = config.progressive_from, config.progressive_start, config.progressive_end
    if not first:
        return last
    if epoch <= start:
        return first
    if epoch >= end:
        return last
    return round((first + (last - first) * (epoch - start) / (end - start)) / MULTIPLE) * MULTIPLE


def other_sizes(config: DataConfig, last: int) -> tuple[int, ...]:
    """Every size but ``last`` that a run uses, in training or validation; rising. Raises ConfigError."""
    sizes = {config.val_image_size or last}
    if config.progressive_from:
        if last % MULTIPLE or last <= config.progressive_from:
            raise ConfigError(
                f"progressive resizing ends at data.image_size, a multiple of {MULTIPLE} above the first size; got "
                f"{last} after data.progressive_from={config.progressive_from}. "
                f"Write e.g. data.image_size={config.progressive_from + MULTIPLE}."
            )
        epochs = range(config.progressive_start, config.progressive_end + 1)
        sizes |= {train_image_size(config, last, epoch) for epoch in epochs}
    return tuple(sorted(sizes - {last}))
