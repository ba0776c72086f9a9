"""Segment images: data, a model, a loss and a metric of one's own; the search optimises the mean IoU.

E=examples/segmentation.py
bigbatch tune --data $E:data --model $E:net --loss $E:dice --metric $E:miou --objective val_miou:max --max-epochs 6
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn
from torch.utils.data import Dataset, TensorDataset


def shapes(count: int, size: int) -> TensorDataset:
    """Images [3, size, size] with a bright disc or square; targets [size, size]: 0 none, 1 disc, 2 square."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre, radius = torch.randint(6, size - 6, (count, 2, 1, 1)), torch.randint(3, 6, (count, 1, 1))
    dy, dx = y - centre[:, 0], x - centre[:, 1]
    disc, square = dy**2 + dx**2 <= radius**2, torch.maximum(dy.abs(), dx.abs()) <= radius
    is_disc = torch.arange(count)[:, None, None] % 2 == 0
    targets = torch.where(is_disc, disc.long(), 2 * square.long())
    images = 0.3 * torch.randn(count, 3, size, size) + (targets > 0).float()[:, None]
    return TensorDataset(images, targets)


def data(size: int = 24) -> tuple[Dataset, Dataset]:
    return shapes(320, size), shapes(80, size)  # torch's generator is seeded: the same images in each process


def net(workload, width: int = 16) -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    up = nn.Upsample(scale_factor=2)
    small = nn.Sequential(nn.MaxPool2d(2), block(width, 2 * width), block(2 * width, width), up)
    return nn.Sequential(block(3, width), block(width, width), small, nn.Conv2d(width, 3, 1))


def dice(outputs: torch.Tensor, targets: torch.Tensor, share: float = 0.5) -> torch.Tensor:
    """Cross entropy and the soft Dice loss (Milletari et al. 2016, eq. 1), mean over the batch."""
    wanted = F.one_hot(targets, 3).movedim(-1, 1)
    found = outputs.softmax(1)
    overlap = 2 * (found * wanted).sum((2, 3)) / (found.square() + wanted).sum((2, 3)).clamp(min=1)
    return (1 - share) * F.cross_entropy(outputs, targets) + share * (1 - overlap.mean())


def miou() -> torchmetrics.Metric:
    return torchmetrics.JaccardIndex(task="multiclass", num_classes=3)
