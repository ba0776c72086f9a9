"""Crops, shifts and mirror images of a whole batch in few tensor operations, on any device."""

from __future__ import annotations

import torch


def cut_windows(images: torch.Tensor, windows: torch.Tensor, size: int) -> torch.Tensor:
    """A window of each image, resized to ``size`` × ``size``, antialiased, bilinear.

    As Pillow and torch resize bytes: by a triangle filter within the window, along rows and then along columns, each
    rounded to whole numbers. So a pixel differs from theirs by 1 of 255 at most, where a value before rounding is close
    to a half or they begin with the columns. A window that is not resized is exact.

    Args:
        images: uint8 ``[N, H, W, 3]``.
        windows: whole numbers ``[N, 5]``: left, upper, right, lower; 1 to mirror it, else 0. The pixels of a window
            that lie outside its image are black; such a window is not to be resized.

    Returns:
        float32 ``[N, size, size, 3]``, contiguous: whole numbers 0 to 255.
    """
    count, height, width, colours = images.shape
    left, upper, right, lower, mirrored = windows.unbind(1)
    # In half precision sums of bytes would be rounded to other pixels.
    with torch.autocast(images.device.type, enabled=False):
        columns = images.float().transpose(1, 2).reshape(count, width, height * colours)
        columns = _rounded(torch.bmm(_weights(left, right, mirrored, width, size), columns))
        rows = columns.view(count, size, height, colours).transpose(1, 2).reshape(count, height, size * colours)
        rows = _rounded(torch.bmm(_weights(upper, lower, torch.zeros_like(mirrored), height, size), rows))
    return rows.view(count, size, size, colours)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """A half goes up, as theirs; in place."""
    return values.add_(0.5).floor_()


def _weights(begin: torch.Tensor, end: torch.Tensor, mirrored: torch.Tensor, side: int, size: int) -> torch.Tensor:
    """The share of each of ``side`` pixels in each of the ``size`` that are made of ``begin`` to ``end``.

    Args: whole numbers ``[N]``. Returns float32 ``[N, size, side]``.
    """
    begin, end, mirrored = begin[:, None, None], end[:, None, None], mirrored[:, None, None]
    there = torch.arange(size, device=begin.device)[None, :, None] + 0.5
    here = torch.arange(side, device=begin.device) + 0.5
    scale = (end - begin) / size
    centre = begin + scale * torch.where(mirrored > 0, size - there, there)
    # min=1: a window that is enlarged is interpolated between neighbours; a narrower filter would miss all of them.
    shares = (1 - (here - centre).abs() / scale.clamp(min=1)).clamp_(min=0)
    shares = shares * ((here > begin) & (here < end))
    return shares / shares.sum(2, keepdim=True).clamp_(min=1e-6)  # nothing where the window leaves the image
