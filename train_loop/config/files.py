"""Configurations in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.config.train_config import TrainConfig

USABLE = "usable"
"""False in the best.json of a search that has no usable answer."""


BECAUSE = {"nothing_learned": "nothing has learned", "indistinct": "no run can be told apart from another"}
"""Why a search has none, by ``unusable_because`` of its frontier.json."""


def unusable_config(config: Mapping[str, object], because: str) -> dict[str, object]:
    """The content of such a best.json: ``read_config`` refuses it."""
    return {USABLE: False, "because": because, "config": dict(config)}


def read_config(path: Path) -> TrainConfig:
    """The TrainConfig in a file: its whole content, or its value ``config`` (best.json).

    Raises ConfigError for what is none, for that of a search without a usable answer, and for the config of a whole
    training function, which our loop cannot train.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--config must be a readable file; got {str(path)!r} ({reason}). Check the path.") from None
    try:
        values = json.loads(text)
    except ValueError:  # also of a number of more than 4,300 digits
        values = None
    if isinstance(values, dict) and values.get(USABLE) is False:
        raise ConfigError(
            f"a configuration must be worth training; {str(path)!r} is from a search in which "
            f"{BECAUSE.get(str(values.get('because')), 'nothing is recommended')}. Search on, with more epochs or "
            "steps; or copy its value config into a file of its own to train it all the same."
        )
    if isinstance(values, dict) and "config" in values:
        text = json.dumps(values["config"])
    try:
        config = TrainConfig.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if config.trainable.name:
        raise ConfigError(
            f"--config is for BigBatch's training loop; {str(path)!r} holds that of {config.trainable.name}. Call that "
            "function with trainable.options, or search on with bigbatch tune --trainable."
        )
    return config
