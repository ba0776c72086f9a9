"""``trials.parquet`` and ``epochs.parquet``: typed and versioned tables, made from the study alone.

The columns are documented in docs/study-folder.md; ``bigbatch.schema_version`` in the schema's
metadata changes with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.trial import FrozenTrial, Trial, TrialState

from bigbatch.base import json_values
from bigbatch.base.atomic_files import replacing
from bigbatch.train_loop import config
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.energy import GPU, energy_of
from bigbatch.tune.runs.feasible import INFEASIBLE_ATTR
from bigbatch.tune.runs.metrics import EPOCH_PARTS as EPOCH_PARTS
from bigbatch.tune.runs.objectives import DEFAULT_OBJECTIVE, Objectives
from bigbatch.tune.runs.run import (
    CONFIRMS_ATTR,
    CONTINUES_ATTR,
    DIVERGED_ATTR,
    EPOCH_ATTR,
    FAILURE_ATTR,
    PAUSED_ATTR,
    AnyTrial,
    as_shown,
    begun,
    epoch_records,
)

TRIALS_VERSION, EPOCHS_VERSION = "3", "3"
OBJECTIVE_KEY = b"bigbatch.objective"
"""The key in the metadata of trials.parquet that says what ``value`` is, e.g. ``val_top1:max``."""

_PLAIN: dict[object, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_PLAIN |= {config.Options: pa.string(), tuple[str, ...]: pa.list_(pa.field("element", pa.string()))}


def _arrow_type(name: str) -> pa.DataType:
    return pa.map_(pa.string(), pa.float64()) if name == "map" else pa.type_for_alias(name)


def _config_fields() -> list[pa.Field]:
    """A column for each key of TrainConfig, named ``config.`` and the dotted key."""
    return [
        pa.field(f"config.{key}", _PLAIN.get(kind, pa.list_(pa.field("element", pa.float64()))))
        for key, kind in config.config_keys().items()
    ]


_FACTS = {
    PAUSED_ATTR: pa.int32(),
    CONTINUES_ATTR: pa.int64(),
    CONFIRMS_ATTR: pa.int64(),
    DIVERGED_ATTR: pa.bool_(),
    FAILURE_ATTR: pa.string(),
}
"""Columns of trials.parquet that repeat a user attribute of the trial."""

TRIALS = pa.schema(
    [
        pa.field("trial", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("best_value", pa.float64()),
        pa.field("values", pa.string()),
        pa.field("epochs", pa.int32(), nullable=False),
        pa.field("epochs_planned", pa.int32()),
        pa.field("gpu_hours", pa.float64()),
        pa.field(GPU, pa.float64()),
        pa.field("ended_because", pa.string()),
        pa.field("infeasible", pa.bool_(), nullable=False),
        pa.field("started_at", pa.timestamp("ms", tz="UTC")),
        pa.field("ended_at", pa.timestamp("ms", tz="UTC")),
        pa.field("attempts", pa.int32()),
        pa.field("retries", pa.int32()),
        *(pa.field(name, kind) for name, kind in _FACTS.items()),
        pa.field("ray_trial_id", pa.string()),
        pa.field("parameters", pa.string(), nullable=False),
        *_config_fields(),
    ],
    metadata={b"bigbatch.schema_version": TRIALS_VERSION, OBJECTIVE_KEY: DEFAULT_OBJECTIVE},
)

EPOCHS = pa.schema(
    [
        pa.field("trial", pa.int64(), nullable=False),
        *(
            pa.field(name, _arrow_type(column.arrow), nullable=name != "epoch")
            for name, column in EpochRecord.columns().items()
        ),
    ],
    metadata={"bigbatch.schema_version": EPOCHS_VERSION},
)


def report_missing(live: Trial, stored: FrozenTrial, objectives: Objectives | None = None) -> None:
    """Report the values of epochs that have only a record: the driver was killed between the two entries."""
    for record in epoch_records(stored):
        if epoch_of(record) not in stored.intermediate_values:
            report(live, record, objectives or Objectives())


def with_record(trial: FrozenTrial, record: Mapping[str, object]) -> FrozenTrial:
    """The trial as if the study had the record of an epoch already."""
    return as_shown(trial, user_attrs={**trial.user_attrs, f"{EPOCH_ATTR}{epoch_of(record):05d}": dict(record)})


def report(live: Trial, record: Mapping[str, object], objectives: Objectives) -> None:
    """Report what an epoch is worth. With several objectives Optuna takes no reports.

    An epoch in which the trial has diverged is worth nothing: samplers and pruners compare numbers.
    """
    if not objectives.several and objectives.first.has_learnt(record):
        live.report(objectives.first.value(record), epoch_of(record))


def trial_row(trial: AnyTrial, objectives: Objectives) -> dict[str, object]:
    """The trial's row in trials.parquet."""
    records = epoch_records(trial)
    values = trial.values if trial.state == TrialState.COMPLETE else None
    shown = objectives.first.shown
    attrs = trial.user_attrs
    configuration = attrs.get("config", {})
    return {
        "trial": trial.number,
        "state": trial.state.name,
        "value": values[0] if values else None,
        "best_value": shown.best([shown.value(record) for record in records]),
        "values": json.dumps(objectives.named(values)) if values else None,
        "epochs": len(records),
        "epochs_planned": configuration.get("epochs"),
        "gpu_hours": attrs.get("gpu_hours"),
        GPU: energy_of(records),
        "ended_because": attrs.get("ended_because"),
        "infeasible": bool(attrs.get(INFEASIBLE_ATTR)),
        # Optuna's times are local and without a zone.
        "started_at": trial.datetime_start.astimezone() if trial.datetime_start else None,
        "ended_at": trial.datetime_complete.astimezone() if trial.datetime_complete else None,
        "attempts": attrs.get("attempts"),
        "retries": attrs.get("retries"),
        **{name: attrs.get(name) for name in _FACTS},
        "ray_trial_id": attrs.get("ray_trial_id"),
        "parameters": json.dumps(trial.params, sort_keys=True),
        **{f"config.{key}": _config_value(configuration, key) for key in [*config.config_keys()]},
    }


def _config_value(configuration: Mapping[str, object], key: str) -> object:
    """A column's value. Options of a user's components are JSON, as each function has its own."""
    value = _at(configuration, key)
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value


def trials_table(trials: Iterable[AnyTrial], objectives: Objectives) -> pa.Table:
    """A row for each trial that has started. The schema's metadata name the objective."""
    rows = [trial_row(t, objectives) for t in begun(trials)]
    schema = TRIALS.with_metadata({**TRIALS.metadata, OBJECTIVE_KEY: objectives.text})
    return pa.Table.from_pylist(rows, schema=schema)


def epochs_table(trials: Iterable[AnyTrial]) -> pa.Table:
    """A row for each epoch of each trial."""
    rows = [{"trial": t.number, **r, **_as_maps(r)} for t in trials for r in epoch_records(t)]
    return pa.Table.from_pylist(rows, schema=EPOCHS)


def _as_maps(record: Mapping[str, object]) -> dict[str, object]:
    """The columns of numbers by name as Arrow wants a map. A record without further metrics has an empty one."""
    found: dict[str, object] = {metrics.OWN: []}
    return found | {name: list(values.items()) for name in metrics.MAPS if isinstance(values := record.get(name), dict)}


def write_trials(trials: Iterable[AnyTrial], path: Path, objectives: Objectives) -> None:
    """Write ``trials_table``."""
    _write(trials_table(trials, objectives), path)


def write_epochs(trials: Iterable[AnyTrial], path: Path) -> None:
    """Write ``epochs_table``."""
    _write(epochs_table(trials), path)


def _write(table: pa.Table, path: Path) -> None:
    with replacing(path) as file:
        pq.write_table(table, file)


def _at(values: Mapping[str, object], key: str) -> object:
    found: object = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    # Options that nobody gave are an empty field.
    return None if found == {} else found


def epoch_of(record: Mapping[str, object]) -> int:
    """The epoch of a record, 1-based."""
    return int(json_values.number(record, "epoch"))


def epoch_s(record: Mapping[str, object]) -> float:
    """Seconds that an epoch took, with validation and checkpoints."""
    return metrics.of_record(metrics.EPOCH_S, record)
