"""A user's file with a data set of its own, for tests: points of two classes, augmented with all global generators."""

from __future__ import annotations

from pathlib import Path

POINTS = '''
import random

import numpy as np
import torch
from torch.utils.data import Dataset


class Points(Dataset):
    """Each item: a dict of float points [P, 3] and an integer grid [4]; the target is a class."""

    def __init__(self, size, points, augment):
        draws = np.random.default_rng(size)
        self.targets = draws.integers(0, 2, size)
        self.points = draws.normal(size=(size, points, 3)) + self.targets[:, None, None]
        self.augment = augment

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        points = self.points[index]
        if self.augment:
            points = points * random.uniform(0.8, 1.2) + np.random.normal(size=3) * 0.1
            points = torch.from_numpy(points) + 0.1 * torch.randn(3)
        inputs = {"points": points, "grid": torch.arange(4) + index}
        return inputs, int(self.targets[index])


def points(size=50, val_size=21, points=5, augment=True):
    return Points(size, points, augment), Points(val_size, points, False)
'''


def write_points(folder: Path, more: str = "") -> str:
    """Write the file, with ``more`` behind it; ``FILE.py:points``."""
    file = folder / "own_points.py"
    file.write_text(POINTS + more)
    return f"{file}:points"
