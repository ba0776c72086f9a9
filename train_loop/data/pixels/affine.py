"""Random changes of an image, as functions of numbers that were drawn before: no generator in here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class AffineRange:
    """How far ``random_affine`` may go, both ways."""

    shift: float
    """Part of the image's side."""
    degrees: float
    scale: float
    """Part of the size: 0.1 is 0.9 to 1.1 times."""


def random_affine(images: torch.Tensor, draws: torch.Tensor, bounds: AffineRange) -> torch.Tensor:
    """Shift, turn and scale each image by its own draws; what comes in from outside is 0.

    Args:
        images: ``[N, C, H, W]``, square.
        draws: ``[N, 4]`` in 0 to 1, uniform: shift right, shift down, turn clockwise, enlarge. 0.5
            everywhere leaves the image as it is.

    Returns:
        ``[N, C, H, W]``, bilinear. An image's result does not depend on the others of the batch.
    """
    right, down, turn, grow = (2 * draws - 1).unbind(1)
    angle = turn * math.radians(bounds.degrees)
    zoom = 1 / (1 + grow * bounds.scale)
    cos, sin = (zoom * angle.cos())[:, None, None], (zoom * angle.sin())[:, None, None]
    size = images.shape[-1]
    # Centres of the pixels, from -1 to 1 over the image. The grid has the source position of each output pixel.
    axis = (torch.arange(size, dtype=images.dtype) * 2 + 1) / size - 1
    # A shift by a part s of the side is 2s on this axis.
    x = axis[None, None, :] - (2 * bounds.shift * right)[:, None, None]
    y = axis[None, :, None] - (2 * bounds.shift * down)[:, None, None]
    grid = torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
