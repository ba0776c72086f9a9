"""Studies on disk with trials of every state, as a search leaves them, for what only reads studies."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.store import StudyStore

EPOCHS = 3
STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, None)
"""Of one trial after the other; None: it still runs."""


def epoch_record(epoch: int, value: float, *, seconds: float = 2.0, workers: int = 1) -> dict[str, object]:
    """What an epoch of a search records, with ``seconds`` of training and half a second of validation."""
    return {
        "epoch": epoch, "epochs": EPOCHS, "train_loss": 2.0 - value, "train_top1": value, "val_loss": 2.5 - value,
        "val_top1": value, "learning_rate": 0.1, "optimizer_steps": 10 * epoch, "skipped_steps": 0,
        "images_per_s": 1000.0, "train_s": seconds, "val_s": 0.5, "workers": workers,
    }  # fmt: skip


def recorded_run(
    number: int, config: TrainConfig, records: Sequence[Mapping[str, object]] = (), state: str = "RUNNING",
    because: str = "because", *, seconds: float = 10.0, **more: Any,
) -> Run:  # fmt: skip
    """A trial with these epochs, which began so many seconds ago, and if it does not run has ended now."""
    attrs = {"config": config.to_dict(), "ended_because": because}
    now = datetime.now()
    return Run(
        number, State[state], user_attrs=attrs | {f"epoch/{record['epoch']:05d}": record for record in records},
        datetime_start=now - timedelta(seconds=seconds), datetime_complete=None if state == "RUNNING" else now, **more,
    )  # fmt: skip


def add_recorded_trial(
    study: optuna.Study, rng: random.Random, state: TrialState | None, epochs: int = EPOCHS, batch: int | None = None
) -> None:
    """A trial with its configuration and ``epochs`` epochs."""
    trial = study.ask()
    trial.suggest_float("rate", 1e-3, 1.0, log=True)
    size = trial.suggest_categorical("batch", [16, 32, 64]) if batch is None else batch
    if trial.suggest_categorical("optimizer", ["sgd", "lars", None]) == "sgd":
        trial.suggest_float("momentum", 0, 0.99)
    changes = {"optimizer.peak_lr": 0.1 + rng.random(), "batch.global_size": size}
    trial.set_user_attr("config", TrainConfig(epochs=EPOCHS).replace_keys(changes).to_dict())
    value = 0.0
    for epoch in range(1, epochs + 1):
        value = rng.random()
        trial.set_user_attr(f"epoch/{epoch:05d}", epoch_record(epoch, value))
        trial.report(value, epoch)
    trial.set_user_attr("gpu_hours", 0.25)
    trial.set_user_attr("workers", 2)
    if state is not None:
        trial.set_user_attr("ended_because", f'it is <b>{state.name}</b>, "quoted", and\nlong')
        study.tell(trial, value if state == TrialState.COMPLETE else None, state=state)


def recorded_study(folder: Path, count: int = 4, *, storage: str | None = None, **description: object) -> StudyStore:
    """A study of ``count`` trials, whose states follow ``STATES``. The caller closes it."""
    store = StudyStore.create(folder, folder.name, {"trials": 12, "max_epochs": EPOCHS, **description}, storage)
    store.study.sampler = optuna.samplers.RandomSampler(0)
    rng = random.Random(0)
    for number in range(count):
        state = STATES[number % 4]
        add_recorded_trial(store.study, rng, state, EPOCHS if state == TrialState.COMPLETE else 1 + number % 2)
    return store
