"""Folders of studies of any size, as searches leave them, without a search: invented curves, real configurations."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.check import check_space
from bigbatch.search_spaces.priors import global_batch_sizes
from bigbatch.search_spaces.registry import load_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.models.protocol import dimensions_of
from helpers.bridges import WORKLOAD

EPOCHS, SLOTS, IMAGES = 12, 2, 360
EPOCH_S = 2.0
CREATE_TRIAL, SET_STATE, SET_USER_ATTR = 4, 6, 8
"""Optuna's numbers of journal entries."""
SPACE = load_space("large_batch")
BEGAN = datetime(2026, 11, 1, 8, 0, 0)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>"
"""What somebody may call a study or a parameter."""
PACKAGES = {"bigbatch": "0.2.0", "optuna": "5.0.0", "ray": "2.60.0", "torch": "2.15.0"}


class Lines(BaseJournalBackend):
    """A journal in memory: a file would be synced after each trial."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs


@dataclass
class Clock:
    """When each slot is free, in seconds since the search began."""

    free: list[float]

    def run(self, seconds: float) -> tuple[datetime, datetime]:
        slot = min(range(len(self.free)), key=lambda i: self.free[i])
        start = self.free[slot] + 1.5
        self.free[slot] = start + seconds
        return BEGAN + timedelta(seconds=start), BEGAN + timedelta(seconds=self.free[slot])


def description(name: str, trials: int, **changes: object) -> dict[str, Any]:
    """study.json of such a study."""
    batches = list(global_batch_sizes(WORKLOAD))
    session = {
        "started_at": "2026-11-01T08:00:00+00:00", "command": ["bigbatch", "tune", "--study", name],
        "host": "node7", "pid": 4711, "python": "3.12.4", "platform": "Linux-6.1", "packages": PACKAGES, "slurm": None,
        "git": {"commit": "0123456789abcdef", "dirty": False}, "outcome": "ended", "elapsed_s": 3600.0,
    }  # fmt: skip
    return {
        "schema_version": 1, "name": name, "space": "large_batch", "space_source": "built-in", "data": "digits",
        "model": "resnet18", "image_size": 32, "train_size": WORKLOAD.train_size, "val_size": IMAGES, "num_classes": 10,
        "trials": trials, "max_epochs": EPOCHS, "seed": 0, "objective": "val_top1:max", "overrides": {},
        "strategy": "curves", "stopping": "look", "workers": 1, "concurrency": SLOTS, "tolerance": "0.5pt",
        "frontier": {"name": "global_batch_size", "values": batches},
        "machine": {"cpus": 2, "gpus": 0, "nodes": []}, "sessions": [session], **changes,
    }  # fmt: skip


def invented_study(folder: Path, trials: int, seed: int = 0, **changes: object) -> Path:
    """Write the folder of a study whose trials have ended in every way. Returns the folder.

    Args:
        changes: keys of study.json.
    """
    folder.mkdir(parents=True)
    about = description(folder.name, trials, **changes)
    (folder / "study.json").write_text(json.dumps(about))
    lines = Lines()
    with_journal = JournalStorage(lines)
    study = optuna.create_study(study_name=folder.name, storage=with_journal, direction="maximize")
    rng, clock = random.Random(seed), Clock([0.0] * SLOTS)
    distributions = {d.name: d.distribution for d in dimensions_of(check_space(SPACE, longer()))}
    for number in range(trials):
        study.add_trial(invented_trial(number, rng, clock, distributions))
    write_journal(folder, lines)
    write_ledger(folder, study.get_trials(deepcopy=False))
    return folder


def write_journal(folder: Path, lines: Lines) -> None:
    """The journal's file, in which each epoch is an entry of its own, as a driver writes it."""
    made = (line for line in lines.logs if line["op_code"] == CREATE_TRIAL)
    numbers = {id(line): number for number, line in enumerate(made)}
    entries = [entry for line in lines.logs for entry in as_written(line, numbers.get(id(line), 0))]
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    (folder / "optuna.journal").write_text(text)


def as_written(line: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The entries of a trial: it begins with its parameters, reports its epochs, and ends."""
    attrs = line.get("user_attrs", {})
    if line["op_code"] != CREATE_TRIAL or not attrs:
        return [line]
    ends = {key: line.pop(key) for key in ("state", "value", "values", "datetime_complete") if key in line}
    about = {"worker_id": line["worker_id"], "trial_id": number}
    epochs = [
        {"op_code": SET_USER_ATTR, **about, "user_attr": {k: v}} for k, v in attrs.items() if k.startswith("epoch/")
    ]
    begin = {**line, "state": 0, "user_attrs": {k: v for k, v in attrs.items() if not k.startswith("epoch/")}}
    values = ends.get("values") or ([ends["value"]] if ends.get("value") is not None else None)
    end = {"op_code": SET_STATE, **about, "state": ends["state"], "values": values}
    if ends.get("datetime_complete"):
        end["datetime_complete"] = ends["datetime_complete"]
    return [begin, *epochs, end]


def write_ledger(folder: Path, trials: list[FrozenTrial]) -> None:
    """One session that held its devices a little longer than its trials."""
    used = {t.number: 3600 * t.user_attrs.get("gpu_hours", 0.0) for t in trials}
    (folder / "ledger").mkdir()
    entry = {"schema_version": 1, "held_device_s": 1.15 * sum(used.values()), "trial_device_s": used}
    (folder / "ledger" / "0001.json").write_text(json.dumps(entry))


def longer() -> Any:
    """The workload of these studies."""
    return replace(WORKLOAD, epochs=EPOCHS)


def invented_trial(
    number: int, rng: random.Random, clock: Clock, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """A trial that has ended: of ten, six run to their end, two are stopped, one is paused, one fails."""
    stand_in = StandInTrial(random.Random(rng.random()))
    config: TrainConfig = SPACE(stand_in, longer(), {})
    params = stand_in.params
    batch = config.batch.global_size
    diverges = float(str(params["lr_multiplier"])) > 9 and number % 3 == 0
    kind = number % 10
    epochs = EPOCHS if kind < 6 else 4
    values = [value_of(params, batch, epoch, rng) for epoch in range(1, epochs + 1)]
    attrs: dict[str, Any] = {"config": config.to_dict(), "attempts": 1, "workers": 1}
    state, because = TrialState.COMPLETE, "ran to its last epoch"
    if diverges:
        state, because, values = TrialState.FAIL, "NonFiniteLossError: the loss was not finite in epoch 3", values[:2]
        attrs |= {"diverged": True, "failure_kind": "diverged"}
    elif kind in (6, 7):
        state, because = TrialState.PRUNED, "stopped after epoch 4: worse than the others there"
    elif kind == 8:
        state, because = TrialState.PRUNED, "paused after epoch 4"
        attrs["paused_in_epoch"] = 4
    elif kind == 9:
        state, because, values = TrialState.FAIL, "a worker died: killed by signal 9", values[:1]
        attrs["failure_kind"] = "process"
    started, ended = clock.run(EPOCH_S * len(values))
    attrs |= {"ended_because": because, "gpu_hours": EPOCH_S * len(values) / 3600}
    attrs |= {f"epoch/{e:05d}": record_of(e, value, config, rng) for e, value in enumerate(values, 1)}
    return FrozenTrial(
        number=number, trial_id=number, state=state, value=values[-1] if state == TrialState.COMPLETE else None,
        datetime_start=started, datetime_complete=ended, params=dict(params), user_attrs=attrs, system_attrs={},
        distributions={name: distributions[name] for name in params},
        intermediate_values=dict(enumerate(values, 1)),
    )  # fmt: skip


def value_of(params: Mapping[str, Any], batch: int, epoch: int, rng: random.Random) -> float:
    """A power law to an end that falls with the distance from the best rate, and a little with the batch."""
    away = abs(math.log10(float(params["lr_multiplier"])))
    end = 0.985 - 0.25 * away**2 - 0.004 * math.log2(batch / 128) - 0.02 * (params["optimizer"] == "sgd")
    return min(1.0, max(0.1, end - 0.5 * epoch**-1.2 + rng.gauss(0, 0.004)))


def record_of(epoch: int, value: float, config: TrainConfig, rng: random.Random) -> dict[str, object]:
    """An epoch's record."""
    batch = config.batch.global_size
    return {
        "epoch": epoch, "epochs": EPOCHS, "train_loss": 1 - value, "train_top1": value, "val_loss": 1.2 - value,
        "val_top1": value, "learning_rate": config.optimizer.peak_lr, "skipped_steps": 0,
        "optimizer_steps": epoch * max(1, WORKLOAD.train_size // batch), "images_per_s": 900.0 * (1 + batch / 4096),
        "train_s": 1.6, "bn_s": 0.1, "val_s": 0.3, "checkpoint_s": 0.0,
        "noise_scale": 300 * math.exp(rng.gauss(0, 0.4)),
    }  # fmt: skip


def hostile_study(folder: Path) -> Path:
    """A study whose every text is a piece of HTML."""
    about = description(folder.name, 12)
    text_keys = dict.fromkeys(("name", "space", "data", "model", "strategy", "stopping"), HOSTILE)
    session = {**about["sessions"][0], "command": ["bigbatch", HOSTILE], "host": HOSTILE, "outcome": HOSTILE}
    folder.mkdir(parents=True)
    about |= {**text_keys, "overrides": {HOSTILE: HOSTILE}, "sessions": [session]}
    about["frontier"] = {"name": HOSTILE, "values": [HOSTILE, "b"]}
    (folder / "study.json").write_text(json.dumps(about))
    lines = Lines()
    found = optuna.create_study(study_name=HOSTILE, storage=optuna.storages.JournalStorage(lines), direction="maximize")
    for number in range(20):
        trial = found.ask()
        trial.suggest_categorical(HOSTILE, [HOSTILE, "b"])
        trial.suggest_float("rate", 0.1, 1.0)
        optimizer = {"name": HOSTILE, "peak_lr": 0.1 + number}
        trial.set_user_attr("config", {"epochs": 2, "optimizer": optimizer, "batch": {"global_size": 64 << number % 3}})
        trial.set_user_attr("epoch/00001", {"epoch": 1, "val_top1": 0.5 + number / 100, "noise_scale": 7.0, HOSTILE: 1})
        trial.set_user_attr("ended_because", HOSTILE)
        trial.set_user_attr("gpu_hours", 0.1)
        if number % 4 == 3:
            found.tell(trial, state=(TrialState.PRUNED, TrialState.FAIL)[number % 8 == 7])
        else:
            found.tell(trial, 0.5 + number / 100)
    write_journal(folder, lines)
    return folder
