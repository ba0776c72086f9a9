"""``bigbatch studies --sort METRIC``: trials and full runs by what they reach, also within a cap of hours or time.

A run counts with the value after the last epoch that ended within the cap. It is not its best epoch: to choose an epoch
by its validation would favour runs whose curve is rough. Time is that of training, validation and checkpoints, on as
many devices as the epoch had workers. Start-up, waiting and lost work are not in it; the study's ledger has them.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.columns import state_words
from bigbatch.tune.console.display import duration
from bigbatch.tune.plan.option_checks import parse_duration
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objective import Objective, Reported, read_objective
from bigbatch.tune.runs.run import EPOCH_ATTR, Run, planned_epochs, replaced_trials, trials_per_gpu_of
from bigbatch.tune.storage.description import STUDY_FILE
from bigbatch.tune.storage.study_tables import read_tables
from bigbatch.tune.storage.summary import entries

RESULT_FILE = "result.json"
"""What ``bigbatch train`` writes at its end."""
HOURS, TIME = "gpu_hours", "time"
HEAD = ("", "RUN", "OPTIMIZER", "BATCH", "WORKERS", "EPOCHS", "VALUE", "BEST EPOCH", "HOURS", "TIME", "STATE")
RIGHT = (0, 3, 4, 5, 6, 7, 8, 9)
"""Columns that are aligned to the right."""


@dataclass(frozen=True)
class Cap:
    """What a run may use: ``workers × hours``, or time."""

    name: str = TIME
    seconds: float = math.inf

    def allows(self, seconds: float, device_s: float) -> bool:
        """Whether a run is within the cap after ``seconds``, with ``device_s`` of all its devices together."""
        return (device_s if self.name == HOURS else seconds) <= self.seconds

    @property
    def words(self) -> str:
        """E.g. ``within 4 device hours``."""
        if self.seconds == math.inf:
            return "without a cap"
        return f"within {f'{self.seconds / 3600:g} device hours' if self.name == HOURS else duration(self.seconds)}"


def read_cap(text: str | None) -> Cap:
    """``gpu_hours=10`` or ``time=90m``. Raises ConfigError for anything else."""
    if text is None:
        return Cap()
    name, _, value = text.partition("=")
    if name == TIME:
        return Cap(TIME, parse_duration(value, "--cap time"))
    try:
        hours = float(value) if name == HOURS else math.nan
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise ConfigError(
            f"--cap must be {HOURS}=H with more than 0 hours, or {TIME}=T; got {text!r}. Write e.g. {HOURS}=10."
        )
    return Cap(HOURS, hours * 3600)


def read_sort(text: str) -> Objective:
    """``val_loss`` or ``val_miou:max``. Raises ConfigError for no metric, and for the hours that a run costs."""
    objective = read_objective("--sort", text, Reported(1, None))
    if objective.name == metrics.GPU_HOURS:
        raise ConfigError(f"--sort is what a run learns; got {text!r}. Cap it instead: --cap {HOURS}=10.")
    return objective


@dataclass(frozen=True)
class RankedRun:
    """A trial or a full run with its epochs."""

    study: str
    """The folder of the study or the full run."""
    name: str
    """``study/trial-0007``, or the full run's folder."""
    run: Run
    """A full run has number 0."""

    def within(self, cap: Cap) -> list[tuple[float, float]]:
        """The seconds, and those of its devices together, after each epoch that ended within the cap.

        A trial that shared a GPU held a part of one.
        """
        seconds = [metrics.of_record(metrics.EPOCH_S, record) for record in self.run.records]
        devices = [_workers(record) / trials_per_gpu_of(self.run) for record in self.run.records]
        totals = zip(accumulate(seconds), accumulate(map(operator.mul, seconds, devices)), strict=True)
        return [total for total in totals if cap.allows(*total)]

    def value(self, objective: Objective, epochs: int) -> float:
        """After so many epochs; a full run with ``validate_every`` has that of the last validation, NaN before one."""
        validated = [record for record in self.run.records[:epochs] if record.get("val_loss", 0.0) is not None]
        return objective.value(validated[-1]) if validated else math.nan


def _workers(record: metrics.Record) -> int:
    return json_values.whole_number(record, "workers", 1)


def ranking(
    output: Path, objective: Objective, cap: Cap, each_trial: bool, say: Callable[[str], None]
) -> list[tuple[str, ...]]:
    """The runs below ``output``, the best one first, as rows of texts below ``HEAD``.

    Args:
        each_trial: every trial, not only the best one of each study.
        say: gets the reason why a folder is left out.

    Raises ConfigError without any run.
    """
    runs = sorted(_runs(output, say), key=lambda run: _key(run, objective, cap))
    if not each_trial:
        best: dict[str, RankedRun] = {}
        for run in runs:
            best.setdefault(run.study, run)
        runs = list(best.values())
    if not runs:
        raise ConfigError(f"--sort needs a finished epoch; got none in {str(output)!r}. Wait, or write --output DIR.")
    return [HEAD, *(_row(number, run, objective, cap) for number, run in enumerate(runs, 1))]


def _key(run: RankedRun, objective: Objective, cap: Cap) -> tuple[float, float, str]:
    """Of equal values the faster run is ahead; runs without an epoch within the cap come last."""
    seconds = run.within(cap)
    gain = objective.gain(run.value(objective, len(seconds))) if seconds else math.nan
    return (math.inf if math.isnan(gain) else -gain, seconds[-1][0] if seconds else math.inf, run.name)


def _row(number: int, run: RankedRun, objective: Objective, cap: Cap) -> tuple[str, ...]:
    seconds, records, one = run.within(cap), run.run.records, run.run
    values = [objective.value(record) for record in records[: len(seconds)]]
    used_s, device_s = seconds[-1] if seconds else (0.0, 0.0)
    return (
        str(number) if values else "–",
        run.name,
        one.optimizer or "–",
        f"{one.batch}" if one.batch is not None else "–",
        f"{_workers(records[-1])}",
        f"{len(values)}/{planned_epochs(one) or len(records)}",
        objective.worth(run.value(objective, len(values)) if values else None),
        objective.worth(objective.best(values)),
        f"{device_s / 3600:.3g}",
        duration(used_s),
        state_words(one) + ", cut by the cap" * (len(values) < len(records)),
    )


def _runs(output: Path, say: Callable[[str], None]) -> Iterator[RankedRun]:
    """Those of the studies and full runs in a folder and its ``train``, to which ``bigbatch train`` writes."""
    for folder in (*entries(output), *sorted((output / "train").glob("*"))):
        try:
            if os.path.exists(folder / STUDY_FILE):
                yield from _trials(folder)
            elif os.path.exists(folder / RESULT_FILE):
                yield _full_run(folder, folder.relative_to(output))
        except ConfigError as error:
            say(f"left out: {folder}: {error}")
        except Exception as error:  # files that someone has edited may hold anything
            say(f"left out: {folder} cannot be read ({type(error).__name__}: {' '.join(str(error).split())})")


def _trials(folder: Path) -> list[RankedRun]:
    """Trials with at least one epoch, without those that another trial repeats or continues: it has their epochs."""
    runs = read_tables(folder).runs
    replaced = replaced_trials(runs)
    return [
        RankedRun(folder.name, f"{folder.name}/trial-{run.number:04d}", run)
        for run in runs
        if run.records and run.number not in replaced
    ]


def _full_run(folder: Path, name: Path) -> RankedRun:
    result = json_values.json_object((folder / RESULT_FILE).read_bytes())
    records = json_values.objects(result, "history")
    attrs: dict[str, object] = {f"{EPOCH_ATTR}{i:05d}": record for i, record in enumerate(records, 1)}
    attrs["config"] = {**json_values.mapping(result, "config"), "epochs": len(records)}
    return RankedRun(str(name), str(name), Run(0, State.COMPLETE, user_attrs=attrs))
