"""Checks of a run before anything expensive starts."""

from __future__ import annotations

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo


def check_run_model(config: TrainConfig, info: DataInfo) -> None:
    """Raise ConfigError for a network that does not exist, or does not suit the data's images."""
    from bigbatch.train_loop.model.networks import check_model

    if config.model.name == "auto":
        raise ConfigError("a full run needs a network; got model.name='auto'. Write --set model.name=resnet50.")
    check_model(config.model, info)
