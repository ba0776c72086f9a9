"""``lr_warmup``: learning rate and warmup alone, at one large batch, for LARS and SGD.

These two decide whether a large batch trains at all (Goyal et al. 2017, §2). The rate goes from 1/16 to 16 times its
prior centre, mostly near it, and the warmup from none to half of the run: wider than in ``large_batch``. The other
values are MLPerf's and Goyal's: momentum 0.9, poly with power 2, label smoothing 0.1, weight decay 1e-4. The batch is
the upper middle one of the large batches (digits 512, ImageNet 8,192); ``--set batch.global_size=…`` changes it, and
the rate follows.
"""

from __future__ import annotations

from typing import Any

from bigbatch.search_spaces.large_batch import PARAMETER_KEYS as PARAMETER_KEYS
from bigbatch.search_spaces.priors import (
    LogNormal,
    global_batch_sizes,
    searched_peak_lr,
    total_steps,
    trust_coefficient,
)
from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig

FRONTIER = "global_batch_size"
"""With ``--batch 256,1024`` a search compares the rates and warmups of each batch."""


def space(trial: Trial, workload: Workload) -> TrainConfig:
    """Peak learning rate and warmup at one large batch, for LARS and SGD."""
    batches = global_batch_sizes(workload)
    # A choice of one: `--set` can then pin it before the learning rate is computed from it.
    batch = trial.suggest_categorical("global_batch_size", [batches[len(batches) // 2]])
    optimizer = trial.suggest_categorical("optimizer", ["lars", "sgd"])
    multiplier = trial.suggest_float("lr_multiplier", 1 / workload.lr_spread, workload.lr_spread, log=True)
    warmup_epochs = trial.suggest_float("warmup_epochs", 0.0, 0.5 * workload.epochs)
    return workload.config(
        {
            "batch.global_size": batch,
            "optimizer.name": optimizer,
            "optimizer.peak_lr": searched_peak_lr(workload, optimizer, batch) * multiplier,
            "optimizer.nesterov": optimizer == "sgd",
            "optimizer.weight_decay": 1e-4,
            "optimizer.trust_coefficient": trust_coefficient(total_steps(workload, batch)),
            "schedule.name": "poly",
            "schedule.warmup_epochs": warmup_epochs,
            "label_smoothing": 0.1,
        }
    )


def soft_priors(workload: Workload) -> dict[str, LogNormal]:
    """As in ``large_batch``."""
    return {"lr_multiplier": LogNormal(1.0, workload.lr_spread**0.5)}


def initial_points(workload: Workload) -> list[dict[str, Any]]:
    """Both optimizers at the centre of their prior."""
    warmup_epochs = round(0.2 * workload.epochs, 3)
    return [{"optimizer": name, "lr_multiplier": 1.0, "warmup_epochs": warmup_epochs} for name in ("lars", "sgd")]
