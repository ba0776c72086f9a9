"""A trial as trackers want it: settings, numbers of each epoch with their times, how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbatch.base import json_values
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import metrics
from bigbatch.tune.storage.study_tables import StudyTables

CONFIG_PREFIX = "config."
_NOT_DRAWN = ("epoch", "epochs", "resumed_from_epoch", *metrics.MAPS)
NUMBERS = tuple(name for name in EpochRecord.columns() if name not in _NOT_DRAWN)
"""Columns of epochs.parquet that a tracker draws over the epochs."""
Setting = str | bool | float


@dataclass(frozen=True)
class EpochPoint:
    """The end of an epoch."""

    epoch: int
    time: float
    """Seconds since the epoch 1970: the trial's start and the epochs until then. 0 if the start is not known."""
    numbers: Mapping[str, float]
    """Column → value, finite or not; missing ones are left out."""


@dataclass(frozen=True)
class TrialRow:
    """A trial with its epochs."""

    number: int
    state: str
    """Optuna's."""
    started: float | None
    """Seconds since the epoch 1970."""
    ended: float | None
    settings: Mapping[str, Setting]
    """The parameters as sampled, and the keys of the configuration in which trials differ."""
    facts: Mapping[str, Setting]
    """The other columns: why it ended, device hours, …"""
    values: Mapping[str, float]
    """Objective → what the trial is worth; empty unless it is complete."""
    points: Sequence[EpochPoint]

    @property
    def name(self) -> str:
        """E.g. ``trial-0007``."""
        return f"trial-{self.number:04d}"


def trial_rows(tables: StudyTables) -> list[TrialRow]:
    """The trials of a study, in the order of their numbers."""
    rows = tables.trials.to_pylist()
    varying = _varying(rows)
    epochs = tables.epochs_of_trials()
    return [_row(row, varying, epochs.get(row["trial"], []), tables) for row in rows]


def _varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns of the configuration that differ between trials."""
    names = [name for name in rows[0] if name.startswith(CONFIG_PREFIX)]
    return [name for name in names if len({json.dumps(row[name]) for row in rows}) > 1]


def _row(
    row: Mapping[str, Any], varying: Sequence[str], epochs: Sequence[Mapping[str, Any]], tables: StudyTables
) -> TrialRow:
    settings = {name: row[name] for name in varying} | json.loads(json_values.text(row, "parameters", "{}"))
    known = ("trial", "state", "value", "values", "parameters", "started_at", "ended_at")
    facts = {name: value for name, value in row.items() if name not in known and not name.startswith(CONFIG_PREFIX)}
    values = json.loads(row.get("values") or "{}")
    started = row["started_at"].timestamp() if row.get("started_at") else None
    return TrialRow(
        number=row["trial"],
        state=row["state"],
        started=started,
        ended=row["ended_at"].timestamp() if row.get("ended_at") else None,
        settings={
            name.removeprefix(CONFIG_PREFIX): _plain(value) for name, value in settings.items() if value is not None
        },
        facts={name: _plain(value) for name, value in facts.items() if value is not None},
        values={name: float(value) for name, value in values.items()},
        points=_points(epochs, started or 0.0),
    )


def _plain(value: object) -> Setting:
    return value if isinstance(value, (str, bool, int, float)) else json.dumps(value)


def _points(epochs: Sequence[Mapping[str, Any]], time: float) -> list[EpochPoint]:
    points = []
    for record in epochs:
        time += metrics.of_record(metrics.EPOCH_S, record)
        own = json_values.mapping(record, metrics.OWN)
        numbers = {name: value for name in own if (value := json_values.number_or_none(own, name)) is not None}
        numbers |= {
            name: json_values.number(record, name, math.nan) for name in NUMBERS if record.get(name) is not None
        }
        points.append(EpochPoint(record["epoch"], time, numbers))
    return points
