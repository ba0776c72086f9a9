"""A model for the points of ``own_sets``."""

from __future__ import annotations

import torch
from torch import nn


class PointNet(nn.Module):
    """Takes the dict of a point cloud and its integer grid; two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.grid, self.head = nn.Linear(3, 8), nn.Embedding(64, 8), nn.Linear(8, 2)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        found = self.points(inputs["points"]).relu().amax(1) + self.grid(inputs["grid"]).mean(1)
        return self.head(found)
