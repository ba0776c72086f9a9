"""The most bytes and inodes that a run and a study write. ResNets need no torch."""

from __future__ import annotations

from bigbatch.train_loop.config import ModelConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host.disk_space import SpaceNeeded, format_bytes

CHECKPOINTS_KEPT = 3
"""The most checkpoints of a run at one time: the latest, the one before, and the one being written."""
RUN_FILES = 16
"""Inodes of one run beside its checkpoints: folder, configuration, result, lock, partial files."""
RUN_BYTES = 4 << 20
EPOCH_BYTES = 4 << 10
"""Bytes of a record in result.json, or in a study's journal and tables: a generous estimate."""

# Parameters without the last layer, and that layer's inputs (torchvision 0.29; a test counts them).
_RESNETS = {
    "resnet18": (11_176_512, 512),
    "resnet34": (21_284_672, 512),
    "resnet50": (23_508_032, 2048),
    "resnet101": (42_500_160, 2048),
    "resnet152": (58_143_808, 2048),
}


def checkpoint_bytes(model: ModelConfig, info: DataInfo, optimizer: str | None, averaged: bool) -> int:
    """Bytes of a checkpoint: weights, optimizer state, average of the weights, float32.

    Args:
        optimizer: its name. None: not known yet; assume the largest state.
    """
    # Momentum alone; Adam's family keeps two means.
    states = 1 if optimizer in ("sgd", "lars") else 2
    return 4 * parameter_count(model, info) * (1 + states + averaged)


def parameter_count(model: ModelConfig, info: DataInfo) -> int:
    """Parameters of the network for these classes. ResNets are counted without torch."""
    if model.name in _RESNETS:
        base, inputs = _RESNETS[model.name]
        return base + (inputs + 1) * info.num_classes
    from bigbatch.train_loop.model.networks import build_on_meta_device

    return sum(p.numel() for p in build_on_meta_device(model, info).parameters())


def run_space_needed(checkpoint: int, epochs: int) -> SpaceNeeded:
    """The space that one full run needs."""
    return SpaceNeeded(
        CHECKPOINTS_KEPT * checkpoint + RUN_BYTES + epochs * EPOCH_BYTES,
        CHECKPOINTS_KEPT + RUN_FILES,
        f"{CHECKPOINTS_KEPT} checkpoints of {format_bytes(checkpoint)}",
    )


def study_space_needed(
    checkpoint: int, trials: int, epochs: int, concurrency: int, *, joined: bool, wandb: bool
) -> SpaceNeeded:
    """The space that a search needs: checkpoints of running trials, of the best and of one just ended; logs of all."""
    kept = min(concurrency + 2, trials)
    checkpoints = kept * CHECKPOINTS_KEPT
    files_a_trial = 1 + (12 if joined else 0) + (20 if wandb else 0)  # log; Ray's files beside the study; W&B's
    return SpaceNeeded(
        checkpoints * checkpoint + RUN_BYTES + trials * (256 << 10) + trials * epochs * EPOCH_BYTES,
        checkpoints + kept + trials * files_a_trial + 2 * RUN_FILES,
        f"{checkpoints} checkpoints of {format_bytes(checkpoint)} and the logs of {trials} trials",
    )
