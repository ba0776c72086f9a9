"""What the tests of loaders read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bigbatch.train_loop.data.loading.loader import BatchFiller, ReadPurpose
from bigbatch.train_loop.data.sets.folder import FolderImages
from bigbatch.train_loop.data.sets.scan import scan_folder
from bigbatch.train_loop.data.source import Epoch

SIZE = 16


def batches_of(*sizes: int) -> list[np.ndarray]:
    draws = np.random.default_rng(1)
    return [draws.integers(0, 40, size) for size in sizes]


def filler(folder: Path, skip_bad: bool = False) -> BatchFiller:
    scan = scan_folder(str(folder))
    return BatchFiller(FolderImages(scan.train), FolderImages(scan.val), skip_bad)


def expected(fill: BatchFiller, job: ReadPurpose, batches: list[np.ndarray]) -> list[torch.Tensor]:
    found = []
    for indices in batches:
        found.append(torch.empty((len(indices), SIZE, SIZE, 3), dtype=torch.uint8))
        fill(job, indices, found[-1], range(len(indices)), indices)
    return found


JOB = ReadPurpose(False, Epoch(3, 4))
