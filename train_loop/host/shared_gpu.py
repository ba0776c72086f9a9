"""How many trials of a search share the GPU of this process, and its part of it. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

SHARED_BY = "BIGBATCH_TRIALS_PER_GPU"
"""``ray_worker`` sets this variable."""
SPARE = 0.1
"""The part of a shared GPU's memory that no trial's tensors may take: each process has a CUDA context beside them."""


def trials_on_gpu(env: Mapping[str, str] = os.environ) -> int:
    """The trials that share this process's GPU, with its own; 1: it has the GPU alone, or trains on a CPU."""
    number = env.get(SHARED_BY, "")
    return max(int(number), 1) if number.isdigit() else 1


def memory_part(trials: int) -> float:
    """The part of a GPU's memory that the tensors of each of ``trials`` that share it may take."""
    return 1.0 if trials == 1 else (1 - SPARE) / trials


def sharing_of(gpus: float) -> int:
    """The trials that share a GPU if a worker of each has ``gpus`` of it; 1 for a whole GPU, or none."""
    return round(1 / gpus) if 0 < gpus < 1 else 1
