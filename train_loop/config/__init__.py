"""The configuration of one training run: ``TrainConfig`` and its sections. Loads no torch.

Users' spaces import from here; the files beside hold the code.
"""

from bigbatch.train_loop.config.data_sections import AugmentConfig, DataConfig, LoaderConfig, MixConfig
from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.config.sections import (
    DEFAULT_MICRO_SIZE,
    OPTIMIZERS,
    BatchConfig,
    BatchSplit,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from bigbatch.train_loop.config.train_config import (
    RUNTIME_KEYS,
    TrainConfig,
    check_each,
    config_keys,
    data_config,
    differing_keys,
    known_key,
    parse_assignments,
    resolve_key,
    short_keys,
    split_assignments,
)

__all__ = [
    "AugmentConfig",
    "BatchConfig",
    "BatchSplit",
    "ConfigError",
    "DEFAULT_MICRO_SIZE",
    "DataConfig",
    "LoaderConfig",
    "MixConfig",
    "ModelConfig",
    "OPTIMIZERS",
    "OptimizerConfig",
    "RUNTIME_KEYS",
    "ScheduleConfig",
    "TrainConfig",
    "check_each",
    "data_config",
    "differing_keys",
    "config_keys",
    "known_key",
    "parse_assignments",
    "resolve_key",
    "short_keys",
    "split_assignments",
]
