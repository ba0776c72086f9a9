"""Reads the learning curves of AlgoPerf's logs (mlcommons/submissions_algorithms, Apache-2.0), of one workload.

A Parquet table with an evaluation a row and the columns of ALGOPERF, made from the ``eval_measurements.csv`` and
``hparams.json`` of the logs. A configuration is a submission with its parameters; each study repeats it.

An "epoch" of such a run is one evaluation. At most EVALUATIONS of a run are kept, evenly spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from replay.curves import CurveTable, RecordedCurve

from bigbatch.base import json_values

EVALUATIONS = 50
ALGOPERF = ["submission", "study", "params", "step", "seconds", "val_accuracy", "config"]
LEAST_SHARE = 0.05
"""A run of AlgoPerf that made fewer steps than this share of the longest has crashed: it is left out."""


def algoperf_table(path: Path) -> CurveTable:
    """The runs of one workload. The submission becomes a parameter.

    A submission that was run with other parameters' names too counts as several. Parameters that are no numbers or
    texts are left out.
    """
    rows = pq.read_table(path, columns=ALGOPERF).to_pylist()
    runs: dict[tuple[object, object], list[Mapping[str, object]]] = defaultdict(list)
    for row in rows:
        runs[(row["config"], row["study"])].append(row)
    longest = max(json_values.number(row, "step") for row in rows)
    found, labels = [], _Labels()
    for run in runs.values():
        run = [row for row in run if json_values.number_or_none(row, "val_accuracy") is not None]
        if len(run) > 2 and json_values.number(run[-1], "step") >= LEAST_SHARE * longest:
            found.append(_algoperf_run(run, labels))
    return CurveTable(path.resolve().name.split(".")[0], tuple(found))


class _Labels:
    """Names of submissions: each name stands for one set of parameters."""

    def __init__(self) -> None:
        self._sets: dict[str, list[frozenset[str]]] = defaultdict(list)

    def of(self, submission: str, names: Iterable[str]) -> str:
        """The submission, with a number from its second set of parameters on."""
        sets, own = self._sets[submission], frozenset(names)
        if own not in sets:
            sets.append(own)
        number = sets.index(own) + 1
        return submission if number == 1 else f"{submission} {number}"


def _algoperf_run(run: Sequence[Mapping[str, object]], labels: _Labels) -> RecordedCurve:
    raw = json_values.json_object(json_values.text(run[0], "params", "{}"))
    own = {name: value for name, value in raw.items() if isinstance(value, (bool, int, float, str))}
    params: dict[str, object] = {"submission": labels.of(str(run[0]["submission"]), own)}
    params |= own
    kept = [run[1:][at] for at in _spread(len(run) - 1)]  # the first evaluation is of the untrained network
    values = tuple(json_values.number(row, "val_accuracy") for row in kept)
    seconds = _growing([json_values.number(row, "seconds") for row in kept])
    return RecordedCurve(params, values, seconds, len(kept))


def _spread(length: int) -> list[int]:
    """At most EVALUATIONS places in a list of that length, evenly spread, with the last."""
    count = min(EVALUATIONS, length)
    return [round((number + 1) * length / count) - 1 for number in range(count)]


def _growing(seconds: Iterable[float]) -> tuple[float, ...]:
    """The seconds, each a little later than the one before: restarts of a run may repeat some."""
    found: list[float] = []
    for second in seconds:
        found.append(max(second, (found[-1] if found else 0.0) + 1e-3))
    return tuple(found)
