"""Reads learning curves that others have published: AlgoPerf's logs and PD1.

**AlgoPerf** (mlcommons/submissions_algorithms, Apache-2.0): a table with an evaluation a row and the columns of
ALGOPERF, made from the ``eval_measurements.csv`` and ``hparams.json`` of its logs. A configuration is a submission
with its parameters; each study repeats it.

**PD1** (Wang et al. 2021, arXiv 2109.08215, CC-BY 4.0, storage.googleapis.com/gresearch/pint/pd1.tar.gz): JSON lines,
a run a line, with the tuned parameters ``hps.…`` and lists of measurements. A file holds many tasks, named by
``study_group``.

An "epoch" of such a run is one evaluation. At most EVALUATIONS of a run are kept, evenly spread.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.simulate.curves import RecordedCurve, RecordedRuns

EVALUATIONS = 50
ALGOPERF = ("submission", "workload", "study", "trial", "params", "step", "seconds", "val_accuracy", "config")
LEAST_SHARE = 0.05
"""A run of AlgoPerf that made fewer steps than this share of the longest has crashed: it is left out."""
PD1_PARAMETERS = {
    "hps.lr_hparams.initial_value": "peak_lr",
    "hps.lr_hparams.power": "lr_power",
    "hps.lr_hparams.decay_steps_factor": "lr_decay_factor",
    "hps.opt_hparams.momentum": "one_minus_momentum",
}
PD1_LISTS = ("global_step", "valid/error_rate")
PD1 = ("study_group", "status", *PD1_PARAMETERS, *PD1_LISTS)


def is_algoperf(columns: Iterable[str]) -> bool:
    """Whether a table with these columns holds AlgoPerf's logs."""
    return {"submission", "workload", "step"} <= set(columns)


def read_algoperf(rows: Sequence[Mapping[str, object]], task: str | None = None) -> tuple[RecordedCurve, ...]:
    """The runs of AlgoPerf's logs; ``task``: one workload only.

    The submission and, if there are several, the workload become parameters. A submission that was run with other
    parameters' names too counts as several. Parameters that are no numbers or texts are left out.

    Raises ConfigError for missing columns, steps that go back, or an unknown task.
    """
    missing = [name for name in ALGOPERF if rows and name not in rows[0]]
    if missing:
        raise ConfigError(f"AlgoPerf's curves need the columns {', '.join(ALGOPERF)}; got no {', '.join(missing)}.")
    workloads = sorted({str(row["workload"]) for row in rows})
    if task is not None and task not in workloads:
        raise ConfigError(f"--task must be one of {', '.join(workloads)}; got {task!r}. Write one of them.")
    runs: dict[tuple[object, object], list[Mapping[str, object]]] = defaultdict(list)
    for row in rows:
        if task is None or row["workload"] == task:
            runs[(row["config"], row["study"])].append(row)
    longest: dict[object, float] = defaultdict(float)
    for row in rows:
        longest[row["workload"]] = max(longest[row["workload"]], json_values.number(row, "step"))
    found, labels = [], _Labels()
    for (config, study), run in runs.items():
        run = [row for row in run if json_values.number_or_none(row, "val_accuracy") is not None]
        if not run:
            continue
        _check_growing([json_values.number(row, "step") for row in run], f"configuration {config} of study {study}")
        if json_values.number(run[-1], "step") >= LEAST_SHARE * longest[run[0]["workload"]] and len(run) > 2:
            found.append(_algoperf_run(run, labels, several=task is None and len(workloads) > 1))
    return tuple(found)


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


def _algoperf_run(run: Sequence[Mapping[str, object]], labels: _Labels, several: bool) -> RecordedCurve:
    raw = json_values.json_object(json_values.text(run[0], "params", "{}"))
    own = {name: value for name, value in raw.items() if isinstance(value, (bool, int, float, str))}
    params: dict[str, object] = {"submission": labels.of(str(run[0]["submission"]), own)}
    if several:
        params["workload"] = run[0]["workload"]
    params |= own
    kept = [run[1:][at] for at in _spread(len(run) - 1)]  # the first evaluation is of the untrained network
    values = tuple(json_values.number(row, "val_accuracy") for row in kept)
    seconds = _growing([json_values.number(row, "seconds") for row in kept])
    return RecordedCurve(params, values, seconds, len(kept))


def is_pd1(path: Path) -> bool:
    """Whether a file of JSON lines begins as PD1's do."""
    with opened(path) as lines:
        try:
            first = json.loads(next(iter(lines), "{}"))
        except ValueError:
            return False
    return isinstance(first, dict) and ("study_group" in first or "hps.lr_hparams.initial_value" in first)


def read_pd1(path: Path, task: str | None) -> RecordedRuns:
    """The runs of one task of a PD1 file. The value is the accuracy: 1 − ``valid/error_rate``.

    Raises ConfigError for missing columns, steps that go back, or, with several tasks, an unknown ``task``.
    """
    groups: dict[str, list[RecordedCurve]] = defaultdict(list)
    for run in _pd1_rows(path):
        curve = _pd1_run(run)
        if curve is not None:
            groups[str(run["study_group"])].append(curve)
    if task is None and len(groups) == 1:
        task = next(iter(groups))
    if task not in groups:
        raise ConfigError(f"--task must name one of this file's tasks; got {task!r}. Write one of {'; '.join(groups)}.")
    return RecordedRuns(f"pd1 {task}", tuple(groups[task]))


def _pd1_rows(path: Path) -> Iterator[dict[str, object]]:
    with opened(path) as lines:
        for line in lines:
            try:
                row = json_values.json_object(line)
            except ValueError:
                raise ConfigError(f"each line must be a JSON object; got {line[:40]!r}.") from None
            missing = [name for name in PD1 if name not in row]
            if missing:
                raise ConfigError(f"PD1's curves need the columns {', '.join(PD1)}; got no {', '.join(missing)}.")
            yield row


def _pd1_run(run: Mapping[str, object]) -> RecordedCurve | None:
    """A run; None if its parameters are not those of the tuned optimizer, or if nothing of it was measured."""
    raw = {name: json_values.number_or_none(run, name) for name in PD1_PARAMETERS}
    if any(value is None for value in raw.values()):
        return None
    params: dict[str, object] = {PD1_PARAMETERS[name]: value for name, value in raw.items()}
    params["one_minus_momentum"] = 1 - json_values.number(run, "hps.opt_hparams.momentum")
    steps, errors = _numbers(run.get("global_step")), _numbers(run.get("valid/error_rate"))
    rate = [r for r in _numbers(run.get("steps_per_sec")) if r > 0]
    _check_growing(steps, str(run.get("trial_dir", "a run")))
    points = [(s, 1 - e) for s, e in zip(steps, errors, strict=False) if s > 0 and math.isfinite(e)]
    diverged = run.get("status") == "diverged"
    if not points:
        return RecordedCurve(params, (), (), 1, True) if diverged else None
    kept = [points[at] for at in _spread(len(points))]
    seconds = _growing([step / (sum(rate) / len(rate) if rate else 1.0) for step, _ in kept])
    return RecordedCurve(params, tuple(v for _, v in kept), seconds, EVALUATIONS if diverged else len(kept), diverged)


def opened(path: Path) -> IO[str]:
    """A file of JSON lines, compressed if its name ends in .gz."""
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _numbers(values: object) -> list[float]:
    """A list of measurements; nothing for null. What is not a number is not a number."""
    if not isinstance(values, list):
        return []
    return [float(v) if isinstance(v, (int, float)) else math.nan for v in values]


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


def _check_growing(steps: Sequence[float], run: str) -> None:
    if any(later <= earlier for earlier, later in zip(steps, steps[1:], strict=False)):
        raise ConfigError(f"steps of a run must grow; got some that do not in {run}. Sort the rows.")
