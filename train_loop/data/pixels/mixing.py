"""Augmentation of whole batches on the device: random erasing, mixup, cutmix.

The draws depend only on (seed, epoch, step, micro-batch), from which a NumPy generator is made: neither a resume nor
the number of workers changes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling

ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 1 / 0.3)
"""Part of the image, and width to height (Zhong et al. 2020, §3.2; torchvision's defaults)."""

Rectangle = tuple[int, int, int, int]
"""Upper, left, height, width; pixels."""
NOWHERE: Rectangle = (0, 0, 0, 0)


def is_mixing_on(config: DataConfig) -> bool:
    """Whether ``mix`` does anything."""
    return config.augment.enabled and any(
        (config.augment.random_erasing, config.mix.mixup_alpha, config.mix.cutmix_alpha)
    )


def mix(
    images: torch.Tensor, labels: torch.Tensor, num_classes: int, config: DataConfig, position: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Erase and mix one micro-batch; with mixup and cutmix both on, each batch takes one of them, evenly.

    Args:
        images: float ``[N, 3, H, W]``, normalised: 0 is the mean colour.
        labels: int64 ``[N]``.
        position: seed, epoch, step, micro-batch.

    Returns:
        Images of the same shape, and labels, or float ``[N, num_classes]`` where images were mixed.
    """
    # A generator for this alone: whether erasing or mixing is on changes no other draw.
    draws = np.random.default_rng([*position, sampling.MIXING])
    height, width = images.shape[2:]
    if config.augment.random_erasing:
        chance, count = config.augment.random_erasing, len(images)
        drawn = [draw_rectangle(height, width, draws) if draws.random() < chance else NOWHERE for _ in range(count)]
        images = erase(images, drawn)
    alphas = [("mixup", config.mix.mixup_alpha), ("cutmix", config.mix.cutmix_alpha)]
    chosen = [(name, alpha) for name, alpha in alphas if alpha]
    if not chosen:
        return images, labels
    name, alpha = chosen[draws.integers(len(chosen))]
    share = float(draws.beta(alpha, alpha))
    if name == "mixup":
        return mixup(images, labels, num_classes, share)
    centre = int(draws.integers(height)), int(draws.integers(width))
    return cutmix(images, labels, num_classes, centred_rectangle(height, width, share, centre))


def draw_rectangle(height: int, width: int, draws: np.random.Generator) -> Rectangle:
    """The rectangle that random erasing removes; ``NOWHERE`` if ten draws did not fit."""
    low, high = math.log(ERASED_RATIO[0]), math.log(ERASED_RATIO[1])
    for _ in range(10):
        area = height * width * draws.uniform(*ERASED_AREA)
        ratio = math.exp(draws.uniform(low, high))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            return int(draws.integers(height - h + 1)), int(draws.integers(width - w + 1)), h, w
    return NOWHERE


def erase(images: torch.Tensor, rectangles: Sequence[Rectangle]) -> torch.Tensor:
    """The images ``[N, C, H, W]`` with 0 in a rectangle of each.

    All images at once: image by image a batch of 512 would cost a device a thousand operations.
    """
    # Page-locked: with more than 64 KB elsewhere the host may wait for the device before it copies.
    bounds = torch.tensor([(u, u + h, x, x + w) for u, x, h, w in rectangles], pin_memory=images.is_cuda)
    upper, lower, left, right = bounds.to(images.device, non_blocking=True)[:, :, None].unbind(1)
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
    rest_of_rows, rest_of_columns = (rows < upper) | (rows >= lower), (columns < left) | (columns >= right)
    kept = rest_of_rows[:, None, :, None] | rest_of_columns[:, None, None, :]
    return images * kept.to(images.dtype)  # on CPUs less than half the time of masked_fill


def mixup(
    images: torch.Tensor, labels: torch.Tensor, num_classes: int, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``share`` of each image and the rest of the one before it (Zhang et al. 2018, eq. 1)."""
    mixed = images.mul(share).add_(images.roll(1, 0), alpha=1 - share)
    return mixed, _mixed_labels(labels, num_classes, share)


def cutmix(
    images: torch.Tensor, labels: torch.Tensor, num_classes: int, rectangle: Rectangle
) -> tuple[torch.Tensor, torch.Tensor]:
    """A rectangle of each image from the one before it; labels by area (Yun et al. 2019, §3.1)."""
    upper, left, height, width = rectangle
    rows, columns = slice(upper, upper + height), slice(left, left + width)
    # A copy: each image gives to its neighbour what it had before.
    mixed = images.clone()
    mixed[:, :, rows, columns] = images.roll(1, 0)[:, :, rows, columns]
    # From the rectangle as cut off at the borders, not as drawn: labels must match the visible pixels.
    share = 1 - height * width / (images.shape[2] * images.shape[3])
    return mixed, _mixed_labels(labels, num_classes, share)


def centred_rectangle(height: int, width: int, share: float, centre: tuple[int, int]) -> Rectangle:
    """A rectangle of area ``1 - share`` around ``centre`` (row, column), cut off at the borders."""
    # Half a side: the area is then 1 - share of the image's.
    part = 0.5 * math.sqrt(1 - share)
    h, w = int(part * height), int(part * width)
    upper, left = max(centre[0] - h, 0), max(centre[1] - w, 0)
    return upper, left, min(centre[0] + h, height) - upper, min(centre[1] + w, width) - left


def _mixed_labels(labels: torch.Tensor, num_classes: int, share: float) -> torch.Tensor:
    one_hot = F.one_hot(labels, num_classes).float()
    return one_hot.mul(share).add_(one_hot.roll(1, 0), alpha=1 - share)
