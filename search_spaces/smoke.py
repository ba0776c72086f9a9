"""``smoke`` tests whether a search works here: SGD's learning rate alone, in a few short trials."""

from __future__ import annotations

from typing import Any

from bigbatch.search_spaces.large_batch import PARAMETER_KEYS as PARAMETER_KEYS
from bigbatch.search_spaces.priors import global_batch_sizes, searched_peak_lr
from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig

DEFAULTS = {"trials": 4, "max_epochs": 3}
"""Used if the command line gives no other values. The search then takes less than a minute on a laptop."""


def space(trial: Trial, workload: Workload) -> TrainConfig:
    """The learning rate of SGD at the smallest large batch, a few epochs."""
    # A choice of one: `--set` can then pin it before the learning rate is computed from it.
    batch = trial.suggest_categorical("global_batch_size", [global_batch_sizes(workload)[0]])
    multiplier = trial.suggest_float("lr_multiplier", 0.25, 4.0, log=True)
    return workload.config(
        {
            "batch.global_size": batch,
            "optimizer.name": "sgd",
            "optimizer.peak_lr": searched_peak_lr(workload, "sgd", batch) * multiplier,
            "schedule.name": "cosine",
            "schedule.warmup_epochs": round(0.2 * workload.epochs, 3),
        }
    )


def initial_points(workload: Workload) -> list[dict[str, Any]]:
    """The centre of the prior."""
    return [{"lr_multiplier": 1.0}]
