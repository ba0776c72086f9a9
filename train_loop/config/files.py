"""Configurations in files."""

from __future__ import annotations

import json
from pathlib import Path

from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.config.train_config import TrainConfig


def read_config(path: Path) -> TrainConfig:
    """The TrainConfig in a file: its whole content, or its value ``config`` (best.json)."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--config must be a readable file; got {str(path)!r} ({reason}). Check the path.") from None
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if isinstance(values, dict) and "config" in values:
        text = json.dumps(values["config"])
    return TrainConfig.from_json(text)
