"""``bigbatch export --tensorboard DIR``: an event file for each trial, with its curves and its row for HParams.

The files are made as records of their own and not by a writer with threads: a second export of the same trial then
replaces its file, where a writer would add one, and TensorBoard would draw each curve twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.study_tables import StudyTables

if TYPE_CHECKING:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

EVENT_FILE = "events.out.tfevents.0.bigbatch"
"""TensorBoard reads each file whose name contains ``tfevents``."""
CONFIG_PREFIX = "config."
_NOT_DRAWN = ("epoch", "epochs", "resumed_from_epoch", *metrics.MAPS)
NUMBERS = tuple(name for name in EpochRecord.columns() if name not in _NOT_DRAWN)
"""Columns of epochs.parquet that a tracker draws over the epochs."""
Settings = dict[str, str | bool | float]


def _runs_with_settings(tables: StudyTables) -> Iterator[tuple[Run, Settings]]:
    """The trials of a study, in the order of their numbers, each with its parameters as sampled, and with the keys of
    the configuration in which trials differ."""
    rows = tables.trials.to_pylist()
    keys = [name for name in rows[0] if name.startswith(CONFIG_PREFIX)]
    varying = [name for name in keys if len({json.dumps(row[name]) for row in rows}) > 1]
    for run, row in zip(tables.runs, rows, strict=True):
        settings = {name.removeprefix(CONFIG_PREFIX): row[name] for name in varying} | dict(sorted(run.params.items()))
        yield run, _plain(settings)


def _plain(values: Mapping[str, object]) -> Settings:
    known = {name: value for name, value in values.items() if value is not None}
    return {name: v if isinstance(v, (str, bool, int, float)) else json.dumps(v) for name, v in known.items()}


def _seconds_of(moment: datetime | None) -> float:
    """Seconds since the epoch 1970; 0 if the moment is not known."""
    return moment.timestamp() if moment else 0.0


def _worth_of(run: Run, objectives: Objectives) -> dict[str, float]:
    """Objective → what the trial is worth; empty unless it is complete."""
    return objectives.named(run.values) if run.state == State.COMPLETE and run.values else {}


def _epoch_ends(run: Run) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Each epoch, its end in seconds since 1970 (the trial's start and the epochs until then), and its numbers.

    Numbers may be infinite or NaN; missing ones are left out.
    """
    time = _seconds_of(run.datetime_start)
    for record in run.records:
        time += metrics.of_record(metrics.EPOCH_S, record)
        own = json_values.mapping(record, metrics.OWN)
        numbers = {name: value for name in own if (value := json_values.number_or_none(own, name)) is not None}
        numbers |= {
            name: json_values.number(record, name, math.nan) for name in NUMBERS if record.get(name) is not None
        }
        yield json_values.whole_number(record, "epoch"), time, numbers


def write_event_files(tables: StudyTables, folder: Path) -> int:
    """Write ``trial-NNNN/`` in ``folder`` for each trial that has begun. Returns their number.

    A scalar for each number of an epoch, at step = epoch, and ``objective/NAME`` for what a complete trial is worth.

    Raises OSError.
    """
    from tensorboardX.record_writer import RecordWriter

    for run, settings in _runs_with_settings(tables):
        path = folder / f"trial-{run.number:04d}" / EVENT_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = RecordWriter(str(path))
        for event in _events(run, settings, tables.objectives):
            writer.write(event.SerializeToString())
        writer.close()
    return len(tables.runs)


def _events(run: Run, settings: Settings, objectives: Objectives) -> Iterator[Event]:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import hparams

    time, epoch = _seconds_of(run.datetime_start), 0
    # TensorBoard's readers expect it as the first record.
    yield Event(wall_time=time, file_version="brain.Event:2")
    _, begin, end = hparams({**settings, "state": run.state.name}, {})
    yield Event(wall_time=time, summary=begin)
    for epoch, time, numbers in _epoch_ends(run):
        yield Event(wall_time=time, step=epoch, summary=_scalars(numbers))
    if worth := _worth_of(run, objectives):
        named = {f"objective/{name}": value for name, value in worth.items()}
        yield Event(wall_time=time, step=epoch, summary=_scalars(named))
    if run.state in (State.COMPLETE, State.PRUNED):  # tensorboardX knows no other end than success
        yield Event(wall_time=_seconds_of(run.datetime_complete) or time, summary=end)


def _scalars(numbers: Mapping[str, float]) -> Summary:
    from tensorboardX.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])
