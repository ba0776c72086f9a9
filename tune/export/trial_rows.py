"""What trackers want of a trial: settings, numbers of each epoch with their times, facts. Also whose copy is replaced.

Two studies may have one name, and one must not take the place of the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.study_tables import StudyTables

CONFIG_PREFIX = "config."
_NOT_DRAWN = ("epoch", "epochs", "resumed_from_epoch", *metrics.MAPS)
NUMBERS = tuple(name for name in EpochRecord.columns() if name not in _NOT_DRAWN)
"""Columns of epochs.parquet that a tracker draws over the epochs."""
_NO_FACTS = ("trial", "state", "value", "values", "parameters", "started_at", "ended_at")
Settings = dict[str, str | bool | float]


def exported_runs(tables: StudyTables) -> Iterator[tuple[Run, Settings, Settings]]:
    """The trials of a study, in the order of their numbers, each with its settings and its facts.

    Settings are the parameters as sampled, and the keys of the configuration in which trials differ. Facts are the
    other columns: why it ended, device hours, …
    """
    rows = tables.trials.to_pylist()
    keys = [name for name in rows[0] if name.startswith(CONFIG_PREFIX)]
    varying = [name for name in keys if len({json.dumps(row[name]) for row in rows}) > 1]
    for run, row in zip(tables.runs, rows, strict=True):
        settings = {name.removeprefix(CONFIG_PREFIX): row[name] for name in varying} | dict(sorted(run.params.items()))
        facts = {name: row[name] for name in row if name not in _NO_FACTS and name not in keys}
        yield run, _plain(settings), _plain(facts)


def _plain(values: Mapping[str, object]) -> Settings:
    known = {name: value for name, value in values.items() if value is not None}
    return {name: v if isinstance(v, (str, bool, int, float)) else json.dumps(v) for name, v in known.items()}


def name_of(run: Run) -> str:
    """E.g. ``trial-0007``."""
    return f"trial-{run.number:04d}"


def seconds_of(moment: datetime | None) -> float:
    """Seconds since the epoch 1970; 0 if the moment is not known."""
    return moment.timestamp() if moment else 0.0


def worth_of(run: Run, objectives: Objectives) -> dict[str, float]:
    """Objective → what the trial is worth; empty unless it is complete."""
    return objectives.named(run.values) if run.state == State.COMPLETE and run.values else {}


def epoch_ends(run: Run) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Each epoch, its end in seconds since 1970 (the trial's start and the epochs until then), and its numbers.

    Numbers may be infinite or NaN; missing ones are left out.
    """
    time = seconds_of(run.datetime_start)
    for record in run.records:
        time += metrics.of_record(metrics.EPOCH_S, record)
        own = json_values.mapping(record, metrics.OWN)
        numbers = {name: value for name in own if (value := json_values.number_or_none(own, name)) is not None}
        numbers |= {
            name: json_values.number(record, name, math.nan) for name in NUMBERS if record.get(name) is not None
        }
        yield json_values.whole_number(record, "epoch"), time, numbers


def check_origin(option: str, target: str, name: str, earlier: str, folder: Path) -> None:
    """Raise ConfigError if ``target`` holds the copy of another study of the same name.

    A copy of the folder's study, or of a folder that has gone because the study was moved, may be replaced.

    Args:
        earlier: the folder that was copied before, as that export noted it; empty: not known.
        folder: the study's.
    """
    if not earlier or Path(earlier).resolve() == folder.resolve() or not (Path(earlier) / STUDY_FILE).exists():
        return
    raise ConfigError(
        f"--{option} holds one study of each name; {target!r} has a copy of {name!r} from {earlier!r}. "
        f"Write another --{option}."
    )
