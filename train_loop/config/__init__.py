"""What one training run is: ``TrainConfig`` and its sections. Loads no torch.

Users' spaces import from here; the files beside hold the code.
"""

from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.config.sections import (
    DEFAULT_MICRO_SIZE,
    OPTIMIZERS,
    BatchConfig,
    BatchSplit,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from bigbatch.train_loop.config.train_config import (
    RUNTIME_KEYS,
    TrainConfig,
    check_each,
    differing_keys,
    keys,
    known_key,
    parse_assignments,
    resolve_key,
    short_keys,
    split_assignments,
)

__all__ = [
    "BatchConfig",
    "BatchSplit",
    "ConfigError",
    "DEFAULT_MICRO_SIZE",
    "DataConfig",
    "ModelConfig",
    "OPTIMIZERS",
    "OptimizerConfig",
    "RUNTIME_KEYS",
    "ScheduleConfig",
    "TrainConfig",
    "check_each",
    "differing_keys",
    "keys",
    "known_key",
    "parse_assignments",
    "resolve_key",
    "short_keys",
    "split_assignments",
]
