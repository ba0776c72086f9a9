"""A configuration's most important settings as short texts, for tables and findings."""

from __future__ import annotations

from bigbatch.train_loop.config import OPTIMIZERS, TrainConfig
from bigbatch.train_loop.config.plug_ins import shown_name

SHOWN_KEYS = frozenset(
    "optimizer.name batch.global_size optimizer.peak_lr schedule.warmup_epochs optimizer.momentum optimizer.beta1 "
    "optimizer.beta2 optimizer.weight_decay label_smoothing schedule.name".split()
)
"""Keys of the configuration that ``shown_settings`` formats."""


def shown_settings(config: TrainConfig | None) -> dict[str, str]:
    """The most important settings of a configuration as short texts; empty without a configuration."""
    if config is None or config.trainable.name:  # what a training function gets, its space's parameters say
        return {}
    o, s = config.optimizer, config.schedule
    values = {"optimizer": shown_name(o.name), "batch": str(config.batch.global_size), "lr": f"{o.peak_lr:.3g}"}
    values["warmup"] = f"{s.warmup_epochs:.2g} ep"
    if o.name in ("sgd", "lars"):
        values["momentum"] = f"{o.momentum:.3g}"
    elif o.name in OPTIMIZERS:
        values["betas"] = f"{o.beta1:.3g}, {o.beta2:.4g}"
    return values | {"wd": f"{o.weight_decay:.1e}", "smoothing": f"{config.label_smoothing:.2g}", "schedule": s.name}


def own_next_step(function: str, best_file: str) -> str:
    """What one may do with the best ``config`` of a training function. Both arguments as one would type them."""
    return f"Its config is trainable.options in {best_file}: call {function} with it, epochs and seed."
