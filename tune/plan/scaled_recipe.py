"""A configuration at another batch and another number of epochs, by the rules of those who published it."""

from __future__ import annotations

import dataclasses
import math

from bigbatch.search_spaces.priors import peak_lr_centre
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, ScheduleConfig, TrainConfig
from bigbatch.train_loop.config.last_step import with_smaller_step


def scaled(config: TrainConfig, batch: int, workload: Workload, steps: int | None = None) -> TrainConfig:
    """What ``config`` trains, for the data, network, epochs and micro-batch of ``workload``, at global batch ``batch``.

    From ``config`` come optimizer, schedule, loss, label smoothing and the average of the weights. Its rate follows the
    batch: linearly for SGD up to 8,192 images and with the square root beyond (Goyal et al. 2017, Nado et al. 2021),
    with the square root for the others (You et al. 2020, arXiv 1904.00962; Malladi et al. 2022, arXiv 2205.10287).
    Warmup and steps of the schedule keep their share of the run.

    Args:
        steps: optimizer steps of the configuration's own run. None: not known.

    Raises ConfigError for a warmup in steps if ``steps`` is None.
    """
    rate = config.optimizer.peak_lr * rate_factor(config.optimizer.name, config.batch.global_size, batch)
    kept = {"loss": config.loss, "label_smoothing": config.label_smoothing, "ema_decay": config.ema_decay}
    base = workload.config({"batch.global_size": batch, **kept})
    return dataclasses.replace(
        with_smaller_step(base, workload.train_size) if workload.smaller_step else base,
        optimizer=dataclasses.replace(config.optimizer, peak_lr=rate),
        schedule=_stretched(config, workload.epochs, steps),
    )


def rate_factor(optimizer: str, before: int, after: int) -> float:
    """The factor on the peak learning rate from one global batch to another; 1 if they are equal."""
    if optimizer == "sgd":
        return peak_lr_centre("sgd", after, 1) / peak_lr_centre("sgd", before, 1)
    return math.sqrt(after / before)


def _stretched(config: TrainConfig, epochs: int, steps: int | None) -> ScheduleConfig:
    schedule, share = config.schedule, epochs / config.epochs
    warmup_epochs = schedule.warmup_epochs * share
    if schedule.warmup_steps:
        if steps is None:
            raise ConfigError(
                "--enqueue needs to know which share of a run its warmup is; got a configuration with "
                f"schedule.warmup_steps={schedule.warmup_steps}. Write schedule.warmup_epochs in the file."
            )
        warmup_epochs = schedule.warmup_steps / steps * epochs
    return dataclasses.replace(
        schedule,
        warmup_epochs=min(warmup_epochs, float(epochs)),
        warmup_steps=0,
        step_epochs=tuple(epoch * share for epoch in schedule.step_epochs),
    )
