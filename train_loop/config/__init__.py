"""The configuration of one training run: ``TrainConfig`` and its sections. Loads no torch.

Users' spaces import from here; the files beside hold the code.
"""

from bigbatch.train_loop.config.data_sections import AugmentConfig, DataConfig, LoaderConfig, MixConfig
from bigbatch.train_loop.config.given import (
    check_each,
    json_or_word,
    parse_assignments,
    split_assignments,
    written_assignments,
)
from bigbatch.train_loop.config.rules import ConfigError, Options
from bigbatch.train_loop.config.sections import (
    OPTIMIZERS,
    BatchConfig,
    BatchSplit,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainableConfig,
    divisible,
)
from bigbatch.train_loop.config.train_config import (
    RUNTIME_KEYS,
    TrainConfig,
    config_keys,
    data_config,
    differing_keys,
    known_key,
    resolve_key,
    short_keys,
)

__all__ = [
    "AugmentConfig",
    "BatchConfig",
    "BatchSplit",
    "ConfigError",
    "DataConfig",
    "LoaderConfig",
    "MixConfig",
    "ModelConfig",
    "OPTIMIZERS",
    "OptimizerConfig",
    "Options",
    "RUNTIME_KEYS",
    "ScheduleConfig",
    "TrainConfig",
    "TrainableConfig",
    "check_each",
    "data_config",
    "differing_keys",
    "divisible",
    "config_keys",
    "json_or_word",
    "known_key",
    "parse_assignments",
    "resolve_key",
    "short_keys",
    "split_assignments",
    "written_assignments",
]
