"""``large_batch``: optimizer, global batch and the parameters that depend on them, for the largest batches of the data.

Parameters (each has one range in a study; some exist only with some optimizers):

  optimizer                lars, lamb, sgd. AdamW has no trust ratio and no published large-batch
                           ResNet result; ``--set optimizer=adamw`` still searches it.
  global_batch_size        powers of two that depend on the size of the training set; see priors.py.
  lr_multiplier            1/16 to 16, log, mostly 1/4 to 4 (``soft_priors``). It multiplies a centre that
                           depends on optimizer and batch; see priors.py. All published settings lie
                           within a factor of 2 of it, but only those of ResNet-50: networks without
                           BatchNorm want a tenth.
  warmup_epochs            5 % to 35 % of the epochs (AlgoPerf, MLPerf).
  schedule                 cosine (RSB) or poly with power 2 (MLPerf).
  label_smoothing          0 to 0.2 (MLPerf and LAMB 0.1; AlgoPerf 0.1 and 0.2; Goyal 0).
  one_minus_momentum       sgd, lars: 0.03 to 0.3, log (MLPerf: momentum 0.9 to 0.952, larger with
                           the batch; AlgoPerf: 1 − β1 up to 0.3, log, which runs of a dozen steps
                           need). The learning rate depends on it; see priors.py.
  weight_decay             sgd, lars, coupled: 1e-5 to 1e-3, log (MLPerf 2.5e-5 to 2e-4, Goyal 1e-4,
                           NVIDIA 3e-5, 5e-4 is usual on small images).
  one_minus_beta1          lamb, adamw: 0.05 to 0.3, log (AlgoPerf).
  own_weight_decay         an optimizer of your own (``--optimizer FILE.py:FUNCTION``): 1e-6 to 0.1, log, which holds
                           both kinds. Its rates are 1/256 to 256 times 3e-3 at batch 1,024.
  decoupled_weight_decay   lamb, adamw: 1e-3 to 2, log (AlgoPerf 1e-3 to 1, RSB 0.02, LAMB at 32k 1.5).
"""

from __future__ import annotations

from typing import Any

from bigbatch.search_spaces.priors import (
    LogNormal,
    global_batch_sizes,
    momentum_window,
    searched_peak_lr,
    total_steps,
    trust_coefficient,
    warmup_epochs_range,
)
from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.rules import is_own

FRONTIER = "global_batch_size"
"""A search compares trials of one batch, and ends with the best configuration of each."""
OPTIMIZERS = ("lars", "lamb", "sgd")

PARAMETER_KEYS = {
    "global_batch_size": ("batch.global_size", int),
    "lr_multiplier": ("optimizer.peak_lr", lambda _: 1.0),  # the pinned rate replaces centre × multiplier
    "one_minus_momentum": ("optimizer.momentum", lambda momentum: 1 - momentum),
    "one_minus_beta1": ("optimizer.beta1", lambda beta1: 1 - beta1),
    "decoupled_weight_decay": ("optimizer.weight_decay", float),
    "own_weight_decay": ("optimizer.weight_decay", float),
}
"""For ``--set``: the key that each parameter sets, and a function from the key's pinned value to the parameter's."""


def space(trial: Trial, workload: Workload) -> TrainConfig:
    """Optimizer, large batch, a peak learning rate that follows both, momentum, warmup and decay."""
    optimizer = trial.suggest_categorical("optimizer", list(OPTIMIZERS))
    batch = trial.suggest_categorical("global_batch_size", list(global_batch_sizes(workload)))
    changes: dict[str, Any] = {
        "optimizer.name": optimizer,
        "batch.global_size": batch,
        "schedule.warmup_epochs": trial.suggest_float("warmup_epochs", *warmup_epochs_range(workload.epochs)),
        "schedule.name": trial.suggest_categorical("schedule", ["cosine", "poly"]),
        "label_smoothing": trial.suggest_float("label_smoothing", 0.0, 0.2),
    }
    multiplier = trial.suggest_float("lr_multiplier", 1 / workload.lr_spread, workload.lr_spread, log=True)
    if optimizer in ("sgd", "lars"):
        momentum = 1 - trial.suggest_float("one_minus_momentum", 0.03, 0.3, log=True)
        changes |= {
            "optimizer.peak_lr": searched_peak_lr(workload, optimizer, batch, momentum) * multiplier,
            "optimizer.momentum": momentum,
            "optimizer.weight_decay": trial.suggest_float("weight_decay", 1e-5, 1e-3, log=True),
            "optimizer.nesterov": optimizer == "sgd",  # MLPerf's LARS has no Nesterov momentum
        }
        if optimizer == "lars":
            changes["optimizer.trust_coefficient"] = trust_coefficient(total_steps(workload, batch))
    elif is_own(optimizer):
        changes |= {
            "optimizer.peak_lr": searched_peak_lr(workload, optimizer, batch) * multiplier,
            "optimizer.weight_decay": trial.suggest_float("own_weight_decay", 1e-6, 0.1, log=True),
        }
    else:
        changes |= {
            "optimizer.peak_lr": searched_peak_lr(workload, optimizer, batch) * multiplier,
            "optimizer.beta1": 1 - trial.suggest_float("one_minus_beta1", 0.05, 0.3, log=True),
            "optimizer.weight_decay": trial.suggest_float("decoupled_weight_decay", 1e-3, 2.0, log=True),
            "optimizer.clip_grad_norm": 1.0,  # You et al. 2020, arXiv 1904.00962
        }
    return workload.config(changes)


def parameters_of(config: TrainConfig, workload: Workload) -> dict[str, Any] | None:
    """The parameters that give ``config``, also outside of the ranges; None for an optimizer that the space has not.

    What the space fixes is not compared, such as Nesterov momentum. LARS's step is rate × η, so that product is kept.
    """
    o, batch, rate = config.optimizer, config.batch.global_size, config.optimizer.peak_lr
    if o.name not in (*OPTIMIZERS, "adamw"):
        return None
    momentum = o.momentum if o.name in ("sgd", "lars") else None
    if o.name == "lars":
        eta = workload.fixed.get("optimizer.trust_coefficient", trust_coefficient(total_steps(workload, batch)))
        rate *= o.trust_coefficient / eta
    return {
        "optimizer": o.name,
        "global_batch_size": batch,
        "warmup_epochs": config.schedule.warmup_epochs,
        "schedule": "cosine" if config.schedule.name == "cosine" else "poly",
        "label_smoothing": config.label_smoothing,
        "lr_multiplier": rate / searched_peak_lr(workload, o.name, batch, momentum),
        "one_minus_momentum": 1 - o.momentum,
        "weight_decay": o.weight_decay,
        "one_minus_beta1": 1 - o.beta1,
        "decoupled_weight_decay": o.weight_decay,
    }


def soft_priors(workload: Workload) -> dict[str, LogNormal]:
    """The rate's multiplier is believed to be near 1; the ends of its range are two standard deviations away."""
    return {"lr_multiplier": LogNormal(1.0, workload.lr_spread**0.5)}


def initial_points(workload: Workload) -> list[dict[str, Any]]:
    """Each optimizer at the centre of its prior: LARS at a middle batch, SGD at the smallest, LAMB at the largest.

    With a pinned batch, all at that one.
    """
    batches = global_batch_sizes(workload)
    if "batch.global_size" in workload.fixed:
        batches = (workload.fixed["batch.global_size"],)
    middle, smallest, largest = batches[(len(batches) - 1) // 2], batches[0], batches[-1]
    window = {batch: momentum_window(total_steps(workload, batch)) for batch in batches}
    shared = {"warmup_epochs": round(0.2 * workload.epochs, 3), "label_smoothing": 0.1, "lr_multiplier": 1.0}
    coupled = {**shared, "schedule": "poly", "weight_decay": 2e-4}
    decoupled = {**shared, "schedule": "cosine", "decoupled_weight_decay": 0.02}
    return [
        {"optimizer": "lars", "global_batch_size": middle, **coupled, "one_minus_momentum": window[middle]},
        {"optimizer": "sgd", "global_batch_size": smallest, **coupled, "one_minus_momentum": window[smallest]},
        {"optimizer": "lamb", "global_batch_size": largest, **decoupled, "one_minus_beta1": window[largest]},
    ]
