"""Convolutions that torch computes slowly on CPUs, computed in another way there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

LARGEST_MAP = 2
"""Pixels a side. A 3×3 kernel with a padding of 1 covers such a map from each of its pixels."""


class SmallMapConv2d(nn.Conv2d):
    """A 3×3 convolution with a padding of 1 that is a matrix product on maps of 1×1 and 2×2.

    Values and gradients are those of ``nn.Conv2d``, within rounding. oneDNN multiplies by the padding there, and its
    backward pass takes several times its forward pass.
    """

    def forward(self, images: Tensor) -> Tensor:
        count, _, height, width = images.shape
        if images.device.type != "cpu" or max(height, width) > LARGEST_MAP:
            return super().forward(images)
        taps = self.weight.permute(0, 2, 3, 1)  # [out, 3, 3, in]; images as [count, height, width, in]
        outputs = [
            taps[:, 1 - y : 1 - y + height, 1 - x : 1 - x + width].flatten(1)
            for y in range(0, height, self.stride[0])
            for x in range(0, width, self.stride[1])
        ]
        found = linear(images.permute(0, 2, 3, 1).flatten(1), torch.cat(outputs))
        rows = -(-height // self.stride[0])
        return found.view(count, rows, -1, self.out_channels).permute(0, 3, 1, 2)


def multiply_small_maps(model: Any) -> None:
    """Give a network ``SmallMapConv2d`` where it has such convolutions. Parameters and their names stay."""
    for module in model.modules():
        is_plain = type(module) is nn.Conv2d and module.groups == 1 and module.bias is None
        if is_plain and (module.kernel_size, module.padding, module.dilation) == ((3, 3), (1, 1), (1, 1)):
            module.__class__ = SmallMapConv2d
