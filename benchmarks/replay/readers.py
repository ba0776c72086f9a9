"""Reads tables of learning curves: JSON lines, and our own studies.

**JSON lines**: a run a line, ``{"params": {"lr": 0.1, "optimizer": "sgd"}, "curve": [[61.0, 0.31], [120.5, 0.42]]}``.
``curve`` has a pair for each epoch: seconds since the run's begin, and the value, of which more is better. Optional:
``epochs`` (those that the run was to train), ``diverged`` (true: fewer values than epochs; the last may be null, and
its seconds say when), ``warmup_epochs`` (0), which early stopping respects. A parameter that is null does not exist.

**A study**: its folder, with ``trials.parquet`` and ``epochs.parquet``. Trials that were stopped early are left out;
a study with ``--stopping none`` makes the best table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bigbatch.base import json_values
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Objective, Reported
from bigbatch.tune.runs.objectives import read_objectives
from bigbatch.tune.runs.tables import EPOCH_PARTS, OBJECTIVE_KEY
from replay.curves import CurveTable, RecordedCurve

Row = dict[str, Any]


def read_curves(path: Path) -> CurveTable:
    """The curves of a file of JSON lines or of a study's folder. Raises ValueError for one that is neither."""
    if path.is_dir():
        return _study_table(path)
    lines = map(json.loads, filter(None, path.read_text(encoding="utf-8").splitlines()))
    curves = [_curve(one["params"], [s for s, _ in one["curve"]], [v for _, v in one["curve"]], one) for one in lines]
    return CurveTable(path.name.split(".")[0], tuple(curves))


def _curve(
    params: Mapping[str, object], seconds: Sequence[float], values: Sequence[Any], facts: Mapping[str, Any]
) -> RecordedCurve:
    diverged = bool(facts.get("diverged"))
    known = values[:-1] if diverged and values[-1:] == [None] else values
    there = {name: value for name, value in params.items() if value is not None}
    epochs = int(facts.get("epochs") or len(values))
    warmup = float(facts.get("warmup_epochs") or 0.0)
    return RecordedCurve(there, tuple(map(float, known)), tuple(seconds), epochs, diverged, warmup)


def _study_table(folder: Path) -> CurveTable:
    trials = pq.read_table(folder / "trials.parquet")
    objective = read_objectives(
        "objective", trials.schema.metadata[OBJECTIVE_KEY].decode(), Reported(1, None)
    ).first.shown
    by_trial: dict[object, list[Row]] = defaultdict(list)
    for row in pq.read_table(folder / "epochs.parquet").to_pylist():
        by_trial[row["trial"]].append({**row, **dict(row.get(metrics.OWN) or ())})
    curves = [_trial_curve(trial, by_trial[trial["trial"]], objective) for trial in trials.to_pylist()]
    plain = Objective(objective.name, objective.direction)
    return CurveTable(folder.resolve().name, tuple(curve for curve in curves if curve is not None), None, plain)


def _trial_curve(trial: Row, epochs: list[Row], objective: Objective) -> RecordedCurve | None:
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
    # The epoch in which it diverged may have a finite accuracy beside a loss that is none.
    values = [row[objective.name] if objective.has_learnt(_there(row)) else None for row in epochs]
    return _curve(json.loads(trial["parameters"]), seconds, values, facts)


def _there(row: Row) -> dict[str, object]:
    """An epoch's record, of its row in a table."""
    return {name: value for name, value in row.items() if value is not None}
