"""Reads tables of learning curves: JSON lines, and our own studies.

**JSON lines**: a run a line, ``{"params": {"lr": 0.1, "optimizer": "sgd"}, "curve": [[61.0, 0.31], [120.5, 0.42]]}``.
``curve`` has a pair for each epoch: seconds since the run's begin, and the value. More keys, each optional: ``epochs``
(those the run was to train; the length of the curve), ``diverged`` (false; the last pair may have the value null: it
says when), ``warmup_epochs`` (0). A first line ``{"dimensions": {…}}`` declares the space (curves.py).

**A study**: its folder, with ``trials.parquet`` and ``epochs.parquet``.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.models.protocol import Dimension
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Direction, Objective, Reported
from bigbatch.tune.runs.objectives import DEFAULT_OBJECTIVE, read_objectives
from bigbatch.tune.runs.tables import EPOCH_PARTS, OBJECTIVE_KEY
from bigbatch.tune.simulate.curves import CurveTable, RecordedCurve, RecordedRuns, declared_dimensions, pooled

DIMENSIONS = "dimensions"
JSON_KEYS = ("params", "curve")
STUDY_FILES = ("trials.parquet", "epochs.parquet")

Rows = list[dict[str, object]]


def read_curves(paths: Sequence[Path], direction: Direction = "maximize") -> CurveTable:
    """The curves of all files and studies as one pool.

    Args:
        direction: of the values, where the format does not state it.

    Raises ConfigError for a file that cannot be read or has a run that cannot be replayed.
    """
    twice = [path for number, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:number]]]
    if twice:
        raise ConfigError(f"--curves takes each file once; got {str(twice[0])!r} twice. Leave one out.")
    return pooled([_read(path, Objective("val_top1", direction)) for path in paths])


def _read(path: Path, objective: Objective) -> RecordedRuns:
    try:
        if os.path.isdir(path):
            return _read_study(path)
        if path.suffix in (".jsonl", ".json", ".gz"):
            return _read_json_lines(path, objective)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged or no text"
        raise ConfigError(
            f"--curves must name files that can be read; got {str(path)!r} ({reason}). Give another file."
        ) from None
    raise ConfigError(f"--curves takes .jsonl files and studies' folders; got {str(path)!r}. Give one of those.")


# JSON lines


def _read_json_lines(path: Path, objective: Objective) -> RecordedRuns:
    declared: tuple[Dimension, ...] | None = None
    curves = []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        text = lines.read()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            run = json_values.json_object(line)
        except ValueError:
            raise ConfigError(f"each line must be a JSON object; got {line[:40]!r} in line {number}.") from None
        dimensions = run.get(DIMENSIONS)
        if isinstance(dimensions, dict):
            declared = declared_dimensions(dimensions)
            continue
        try:
            curves.append(_curve_of(run))
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
    return RecordedRuns(path.name.split(".")[0], tuple(curves), declared, objective)


def _curve_of(run: Mapping[str, object]) -> RecordedCurve:
    params, curve = run.get("params"), run.get("curve")
    if not isinstance(params, dict) or not isinstance(curve, list):
        missing = [key for key in JSON_KEYS if key not in run] or list(JSON_KEYS)
        raise ConfigError(
            f"a run needs params (an object) and curve (a list); {' and '.join(missing)} is missing or of another "
            "kind. See docs/simulate.md."
        )
    pairs = [pair for pair in curve if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(curve):
        raise ConfigError("a curve must be a list of [seconds, value]; got another shape. Write e.g. [[61.0, 0.31]].")
    return _curve(params, [s for s, _ in pairs], [v for _, v in pairs], run)


def _curve(
    params: Mapping[str, object], seconds: Sequence[object], values: Sequence[object], facts: object
) -> RecordedCurve:
    """A run from its columns. A last value that is null or not finite marks when a diverged run ended."""
    more = facts if isinstance(facts, Mapping) else {}
    diverged = bool(_whole(more, "diverged", 0, most=1))
    good = [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    if len(good) < len(values) - diverged or (len(good) < len(values) and _is_value(values[-1])):
        raise ConfigError("values of a curve must be numbers; got one that is not. Mark a diverged run as diverged.")
    if not all(_is_value(second) for second in seconds):
        raise ConfigError("seconds of a curve must be numbers; got one that is not.")
    planned = _whole(more, "epochs", len(good) + diverged)
    times = tuple(float(second) for second in seconds)  # type: ignore[arg-type]
    warmup = more.get("warmup_epochs") or 0.0
    if not _is_value(warmup):
        raise ConfigError(f"warmup_epochs must be a number; got {warmup!r}.")
    there = {name: value for name, value in params.items() if value is not None}  # null: it does not exist
    return RecordedCurve(there, tuple(good), times, planned, diverged, float(warmup))


def _whole(facts: Mapping[str, object], key: str, default: int, most: float = math.inf) -> int:
    """A whole number, also as 16.0, as pandas writes it; true is 1. Raises ConfigError for anything else but null."""
    value = facts.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return default
    if isinstance(value, (bool, int, float)) and value == math.floor(value) and 0 <= value <= most:
        return int(value)
    what = "true or false" if most == 1 else "a whole number"
    raise ConfigError(f"{key} of a run must be {what}; got {value!r}.")


def _is_value(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


# Our own studies


def _parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, ValueError) as error:  # OSError is the caller's
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"curves must be a readable Parquet file; got {path.name} ({reason}).") from None


def _read_study(folder: Path) -> RecordedRuns:
    missing = [name for name in STUDY_FILES if not os.path.isfile(folder / name)]
    if missing:
        raise ConfigError(f"a study's folder must hold {' and '.join(STUDY_FILES)}; got none named {missing[0]}.")
    trials, epochs = (_parquet(folder / name) for name in STUDY_FILES)
    text = (trials.schema.metadata or {}).get(OBJECTIVE_KEY, DEFAULT_OBJECTIVE.encode()).decode()
    objective = read_objectives("objective", text, Reported(1, None)).first.shown
    rows = epochs.to_pylist()
    own = {name for row in rows for name, _ in row.get(metrics.OWN) or ()}
    if objective.name not in (*epochs.column_names, *own):
        raise ConfigError(f"curves need a metric of every epoch; got a study of {objective.name}. Give another study.")
    rows = [{**row, **dict(row.get(metrics.OWN) or ())} for row in rows]
    by_trial: dict[object, Rows] = defaultdict(list)
    for row in rows:
        by_trial[row["trial"]].append(row)
    curves = [_trial_curve(trial, by_trial[trial["trial"]], objective) for trial in trials.to_pylist()]
    plain = Objective(objective.name, objective.direction)
    return RecordedRuns(folder.resolve().name, tuple(curve for curve in curves if curve is not None), None, plain)


def _trial_curve(trial: Mapping[str, object], epochs: Rows, objective: Objective) -> RecordedCurve | None:
    """The trial's curve; None unless it reached its end or diverged."""
    diverged = trial["state"] == "FAIL" and json_values.flag(trial, "diverged")
    planned = json_values.whole_number(trial, "epochs_planned")
    whole = trial["state"] == "COMPLETE" and planned == len(epochs)  # a search for a target ends trials sooner
    if not whole and not (diverged and planned >= len(epochs)):
        return None
    seconds, now_s = [], 0.0
    for row in epochs:
        now_s += sum(json_values.number(row, part) for part in EPOCH_PARTS)
        seconds.append(now_s)
    warmup = json_values.number(trial, "config.schedule.warmup_epochs")
    facts = {"epochs": planned, "diverged": diverged, "warmup_epochs": warmup}
    params = json.loads(json_values.text(trial, "parameters", "{}"))
    # The epoch in which it diverged may have a finite accuracy beside a loss that is none.
    values = [row[objective.name] if objective.has_learnt(_there(row)) else None for row in epochs]
    return _curve(params, seconds, values, facts)


def _there(row: Mapping[str, object]) -> dict[str, object]:
    """An epoch's record, of its row in a table."""
    return {name: value for name, value in row.items() if value is not None}
