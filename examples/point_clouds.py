"""Classify point clouds: data sets, augmentation and a small PointNet (Qi et al. 2017) of one's own, for any search.

    bigbatch tune --data examples/point_clouds.py:data --model examples/point_clouds.py:net --trials 8 --max-epochs 6

The clouds are generated: spheres, boxes and cylinders, turned at random, with noise.
"""

from __future__ import annotations

import numpy as np
from torch import nn
from torch.utils.data import Dataset

SHAPES = "sphere", "box", "cylinder"


class Clouds(Dataset):
    classes = SHAPES  # names and number of the classes

    def __init__(self, size: int, points: int, train: bool) -> None:
        draws = np.random.default_rng(0 if train else 1)
        self.targets = draws.integers(0, len(SHAPES), size)  # so subset and holdout take each class alike
        self.clouds = [cloud(SHAPES[target], points, draws) for target in self.targets]
        self.train = train

    def __len__(self) -> int:
        return len(self.clouds)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        found = self.clouds[index]
        if self.train:  # numpy's generator is seeded for each epoch and item: a resumed run draws the same
            turn = np.linalg.qr(np.random.normal(size=(3, 3)))[0]
            found = found @ turn + np.random.normal(0, 0.02, found.shape)
        return found.astype(np.float32), int(self.targets[index])


def cloud(shape: str, points: int, draws: np.random.Generator) -> np.ndarray:
    xyz = draws.normal(size=(points, 3))
    if shape == "sphere":
        xyz /= np.linalg.norm(xyz, axis=1, keepdims=True)
    elif shape == "box":
        xyz /= np.abs(xyz).max(axis=1, keepdims=True)
    else:
        xyz[:, :2] /= np.linalg.norm(xyz[:, :2], axis=1, keepdims=True)
        xyz[:, 2] = draws.uniform(-1, 1, points)
    return xyz @ np.linalg.qr(draws.normal(size=(3, 3)))[0]


def data(size: int = 600, points: int = 128) -> tuple[Dataset, Dataset]:
    return Clouds(size, points, train=True), Clouds(200, points, train=False)


def net(workload, width: int = 32) -> nn.Module:
    """[N, P, 3] → [N, P, 4·width] → the maximum over the points → logits."""
    points = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 4 * width), nn.ReLU())
    head = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, workload.num_classes))
    return nn.Sequential(points, nn.AdaptiveMaxPool2d((1, None)), nn.Flatten(), head)
