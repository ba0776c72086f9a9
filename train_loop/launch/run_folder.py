"""The folder of a full run, before it begins: it can be written, holds no other run, and has room for the results."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bigbatch.base.atomic_files import write_json
from bigbatch.base.json_values import json_object
from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.config.own_names import check_same_code, code_fingerprints, own_words
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.command_line import check_writable
from bigbatch.train_loop.loop import space_needed

OWN_CODE_FILE = "own_code.json"
"""Fingerprints of the users' files with which a run began, in its folder."""


def write_own_code(output: Path, config: TrainConfig) -> None:
    """Note the users' files as they are now; nothing without any."""
    if words := own_words(config):
        write_json(output / OWN_CODE_FILE, code_fingerprints(words.values()), indent=2)


def check_output(output: Path, config: TrainConfig, accept_changed_code: bool = False) -> Path:
    """The folder. Raises ConfigError if it cannot be written, or holds another run, or one of other code."""
    check_writable("--output", output)
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
    checkpoint = space_needed.checkpoint_bytes(config.model, info, config.optimizer.name, averaged=averaged)
    disk_space.check_disk_space("--output", output, space_needed.run_space_needed(checkpoint, config.epochs))
