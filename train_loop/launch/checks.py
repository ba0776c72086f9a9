"""Checks of a run before anything expensive starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.plug_ins import DATA, LOSSES, METRICS, MODELS, OPTIMIZERS_GROUP
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.plugins.registry import is_component

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


def uses_users_code(config: TrainConfig) -> bool:
    """Whether a component of the configuration is the user's own, or a package's."""
    if config.trainable.name:
        return False  # it checks itself
    words = ((MODELS, config.model.name), (DATA, config.data.name), (LOSSES, config.loss))
    more = ((OPTIMIZERS_GROUP, config.optimizer.name), *((METRICS, word) for word in config.metrics))
    return any(is_component(group, word) for group, word in (*words, *more))


def check_users_code(config: TrainConfig, scan: FolderScan | None = None, workers: int = 1) -> None:
    """``try_users_code``, and a look at options that no component takes.

    Raises ConfigError and OwnCodeError as ``check_two_batches``, and ConfigError for options that no component takes.
    """
    for key, options, group, word in option_sections(config):
        if options and not takes_options(group, word):
            raise ConfigError(
                f"{key} are arguments of a function of your own; got {dict(options)} with {word}. Leave them out."
            )
    try_users_code(config, scan, workers)


def try_users_code(
    config: TrainConfig, scan: FolderScan | None = None, workers: int = 1, needs_top1: bool = False
) -> None:
    """Train and validate two small batches on the CPU where a component is the user's own; else do nothing.

    Raises ConfigError and OwnCodeError as ``check_two_batches``.
    """
    if uses_users_code(config):
        from bigbatch.train_loop.loop.smoke_test import check_two_batches

        check_two_batches(config, scan, workers, needs_top1)


def option_sections(config: TrainConfig) -> list[tuple[str, Mapping[str, object], str, str]]:
    """The options of the configuration: their key, themselves, and the group and name of the component that takes them.

    Those of data are checked where the data set is opened.
    """
    return [
        ("model.options", config.model.options, MODELS, config.model.name),
        ("loss_options", config.loss_options, LOSSES, config.loss),
        ("optimizer.options", config.optimizer.options, OPTIMIZERS_GROUP, config.optimizer.name),
    ]


def takes_options(group: str, word: str) -> bool:
    """Whether a component has arguments of its own: a user's, a package's, or a network of timm."""
    return is_component(group, word) or (group == MODELS and word.startswith("timm/"))
