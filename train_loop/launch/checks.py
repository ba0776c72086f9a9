"""Checks of a run before anything expensive starts: its components, its folder, and the room for its results.

The folder must be writable, and hold no other run. This file also estimates the most bytes and inodes that a run and a
study write; for ResNets it needs no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import write_json
from bigbatch.base.json_values import json_object
from bigbatch.train_loop.config import ConfigError, ModelConfig, TrainConfig, differing_keys
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.config.own_names import check_same_code, code_fingerprints, own_words
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.command_line import check_writable
from bigbatch.train_loop.host.disk_space import SpaceNeeded, format_bytes

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan


NO_CHECK = "do not first train two batches on the CPU, which finds mistakes in components of your own"
"""The help text of ``--no-check``."""


def check_run_model(config: TrainConfig, info: DataInfo) -> None:
    """Raise ConfigError for a network that does not exist, or does not suit the data's images."""
    from bigbatch.train_loop.model.networks import check_model

    if config.model.name == "auto":
        raise ConfigError("a full run needs a network; got model.name='auto'. Write --set model.name=resnet50.")
    check_model(config.model, info)


def check_users_code(config: TrainConfig, scan: FolderScan | None = None) -> None:
    """``try_users_code``, and a look at options that no component takes.

    Raises ConfigError and OwnCodeError as ``run_smoke_test``, and ConfigError for options that no component takes.
    """
    for key, options, word in option_sections(config):
        if options and not takes_options(word):
            raise ConfigError(
                f"{key} are arguments of a function of your own; got {dict(options)} with {word}. Leave them out."
            )
    try_users_code(config, scan)


def try_users_code(config: TrainConfig, scan: FolderScan | None = None, needs_top1: bool = False) -> None:
    """Train and validate two small batches on the CPU where a component is the user's own; else do nothing.

    Raises ConfigError and OwnCodeError as ``run_smoke_test``.
    """
    if own_words(config) and not config.trainable.name:  # a whole training function checks itself
        from bigbatch.train_loop.loop.smoke_test import run_smoke_test

        run_smoke_test(config, scan, needs_top1)


def option_sections(config: TrainConfig) -> list[tuple[str, Mapping[str, object], str]]:
    """The options of the configuration: their key, themselves, and the name of the component that takes them.

    Those of data are checked where the data set is opened.
    """
    return [
        ("model.options", config.model.options, config.model.name),
        ("loss_options", config.loss_options, config.loss),
        ("optimizer.options", config.optimizer.options, config.optimizer.name),
    ]


def takes_options(word: str) -> bool:
    """Whether a component has arguments of its own: a user's, or a network of timm."""
    return is_own(word) or word.startswith("timm/")


OWN_CODE_FILE = "own_code.json"
"""Fingerprints of the users' files with which a run began, in its folder."""


def write_own_code(output: Path, config: TrainConfig) -> None:
    """Write the fingerprints of the users' files as they are now; without such files, write nothing."""
    if words := own_words(config):
        write_json(output / OWN_CODE_FILE, code_fingerprints(words.values()), indent=2)


def check_output(output: Path, config: TrainConfig, accept_changed_code: bool = False) -> Path:
    """Return the folder. Raises ConfigError if it cannot be written, or holds a study, another run, or other code."""
    check_writable("--output", output)
    check_writable("--output", output / "checkpoints")  # of an earlier run
    if (output / "study.json").exists():
        raise ConfigError(f"--output must be the run's own; got {str(output)!r}, a study's. Write --output OTHER.")
    stored = output / "config.json"
    if stored.exists():
        changes = differing_keys(read_config(stored).to_dict(), config.to_dict())
        if changes:
            raise ConfigError(
                f"a run resumes with the configuration that it began with; {str(output)!r} holds one with other "
                f"values: {', '.join(changes)}. Write --output with another folder."
            )
    before: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # none: a run without users' files
        values = json_object((output / OWN_CODE_FILE).read_text())
        before = {word: str(digest) for word, digest in values.items()}
    check_same_code(before, code_fingerprints(own_words(config).values()), "a run", accept_changed_code)
    return output


def check_output_room(output: Path, config: TrainConfig, info: DataInfo) -> None:
    """Raise ConfigError if there is not enough room for the results."""
    averaged = config.ema_decay > 0
    checkpoint = checkpoint_bytes(config.model, info, config.optimizer.name, averaged=averaged)
    need = SpaceNeeded(
        CHECKPOINTS_KEPT * checkpoint + RUN_BYTES + config.epochs * EPOCH_BYTES,
        CHECKPOINTS_KEPT + RUN_FILES,
        f"{CHECKPOINTS_KEPT} checkpoints of {format_bytes(checkpoint)}",
    )
    disk_space.check_disk_space("--output", output, need)


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
