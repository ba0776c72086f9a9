"""``bigbatch export STUDY``: copies a study for other tools. Takes no lease, also while the search runs."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.base.atomic_files import replacing
from bigbatch.base.command_line import OneLineParser
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.console.text import said_in_one_line
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from bigbatch.tune.storage.study_tables import StudyTables, read_tables
from bigbatch.tune.storage.summary import find_study

if TYPE_CHECKING:
    import pyarrow as pa
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary


def export_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch export``."""
    p = OneLineParser(
        prog="bigbatch export",
        description="Copy a study for other tools. Repeat the command to bring a copy up to date.",
    )
    add = p.add_argument
    add("study", metavar="STUDY|PATH", help="a study's name in --output, or its folder")
    add("--csv", metavar="DIR", help="write trials.csv and epochs.csv there")
    add("--tensorboard", metavar="DIR", help="write event files there, with a row for HParams for each trial")
    add("--output", metavar="DIR", default="runs", help="the folder of studies (default: runs)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Export. Returns the exit code: 0, or 2 for wrong input."""
    args = export_parser().parse_args(argv)
    return said_in_one_line("bigbatch export", lambda: _export(args))


def _export(args: argparse.Namespace) -> None:
    if args.csv is None and args.tensorboard is None:
        raise ConfigError("an export needs a format; got none. Write --csv DIR, --tensorboard DIR or both.")
    folder = find_study(args.study, Path(args.output))
    tables = read_tables(folder)
    try:
        if args.csv is not None:
            write_csv_files(tables, Path(args.csv))
        if args.tensorboard is not None:
            count = write_event_files(tables, _event_folder(Path(args.tensorboard), folder.resolve()))
            shown = shlex.quote(args.tensorboard)
            print(f"wrote {count} trials to {args.tensorboard}; look at them: tensorboard --logdir {shown}", flush=True)
    except OSError as error:
        raise ConfigError(
            f"an export needs folders that can be written; got {error.filename!r} ({error.strerror}). Write another."
        ) from None


def write_csv_files(tables: StudyTables, folder: Path) -> None:
    """Write both tables to ``folder``, which is made if needed, and say so. Raises OSError.

    Times are in UTC. A list or a map is written as JSON, a missing value as an empty field.
    """
    import pyarrow.csv as pc

    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("trials", tables.trials), ("epochs", tables.epochs)):
        path = folder / f"{name}.csv"
        with replacing(path) as file:
            pc.write_csv(_without_lists(table), file)
        print(f"wrote {path}", flush=True)


def _without_lists(table: pa.Table) -> pa.Table:
    """Arrow's CSV writer knows neither lists nor maps."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_list(field.type) or pa.types.is_map(field.type):
            plain = dict if pa.types.is_map(field.type) else list
            texts = [None if value is None else json.dumps(plain(value)) for value in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


# TensorBoard

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
        known = {name: value for name, value in settings.items() if value is not None}
        yield run, {name: v if isinstance(v, (str, bool, int, float)) else json.dumps(v) for name, v in known.items()}


def _seconds_of(moment: datetime | None) -> float:
    """Seconds since the epoch 1970; 0 if the moment is not known."""
    return moment.timestamp() if moment else 0.0


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


def _event_folder(parent: Path, study: Path) -> Path:
    """The folder in ``parent`` for the study's events. Raises OSError, and ConfigError if it holds another study's."""
    folder = parent / study.name
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "exported-from.txt"
    if note.exists() and note.read_bytes() != os.fsencode(study):
        raise ConfigError(
            f"--tensorboard DIR takes one study of each name; got {str(study)!r}, and {str(folder)!r} holds "
            f"{os.fsdecode(note.read_bytes())!r}. Write another DIR, or remove that folder."
        )
    note.write_bytes(os.fsencode(study))
    return folder


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
    if run.state == State.COMPLETE and run.values:
        named = {f"objective/{name}": value for name, value in objectives.named(run.values).items()}
        yield Event(wall_time=time, step=epoch, summary=_scalars(named))
    if run.state in (State.COMPLETE, State.PRUNED):  # tensorboardX knows no other end than success
        yield Event(wall_time=_seconds_of(run.datetime_complete) or time, summary=end)


def _scalars(numbers: Mapping[str, float]) -> Summary:
    from tensorboardX.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])
