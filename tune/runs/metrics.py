"""The metrics of a trial: what its epochs' records hold, and what is derived from them. Units, better direction, words.

A field of ``EpochRecord`` is a metric if it is a number that describes the epoch. Two more are derived: ``epoch_s``
from the records, ``gpu_hours`` from the study's ledger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bigbatch.base import json_values
from bigbatch.base.command_line import nearest_word
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.plugins.metric_names import COSTS as COSTS
from bigbatch.train_loop.reporter import EpochRecord

Record = Mapping[str, object]
OWN = "metrics"
"""The field of a record with the metrics of ``--metric``."""
POSITIONS = ("epoch", "epochs", "resumed_from_epoch", "learning_rate", "workers")
"""Fields of a record that say where it is in the run, and how it trained."""
BASELINE = "baseline"
"""The field of a record with what a constant prediction reaches; in study.json what the user states."""
MAPS = tuple(name for name, column in EpochRecord.columns().items() if column.arrow == "map")
"""Fields of a record that hold numbers by name."""
NOT_ALWAYS = (
    "noise_scale",
    "holdout_loss",
    "holdout_top1",
    "gpu_energy_j",
    "gpu_utilization",
    *MAPS,
)
"""Fields that a run need not measure, or that make no choice: a trial could end without a value."""
EPOCH_PARTS = tuple(name for name, column in EpochRecord.columns().items() if column.epoch_part)
"""Fields of a record: together the seconds that the epoch took."""
GPU_HOURS, EPOCH_S = "gpu_hours", "epoch_s"
TITLES = {
    "val_top1": "validation top-1",
    "train_top1": "training top-1",
    "val_loss": "validation loss",
    "train_loss": "training loss",
    "memory_bytes": "peak memory",
    "images_per_s": "images/s",
    "optimizer_steps": "optimizer steps",
    GPU_HOURS: "device hours",
    EPOCH_S: "epoch time",
}
SHORT = {"val_top1": "top-1", "memory_bytes": "memory", "optimizer_steps": "steps", GPU_HOURS: "hours"}
"""Names in the columns of the trial table."""


@dataclass(frozen=True)
class Metric:
    """A number that is known of a trial."""

    name: str
    better: str
    """``higher``, ``lower``, or empty: there is no natural direction."""

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        own = self.name not in known_metrics() and self.name.startswith("val_")
        return TITLES.get(self.name, f"validation {self.name[4:]}" if own else self.name)

    @property
    def short(self) -> str:
        """Its name over a column."""
        return SHORT.get(self.name, self.name if self.name in known_metrics() else self.name.removeprefix("val_"))

    @property
    def is_proportion(self) -> bool:
        """Whether it is right answers over images, so that an interval follows from their number. Only the images that
        validate are each counted once."""
        return self.name == "val_top1"

    def text(self, value: float | None) -> str:
        """A value with its unit, e.g. ``86.9 %``, ``1.23``, ``3.42 GiB``, ``12.5 s``; ``–`` for None or no number."""
        if value is None or not math.isfinite(value):
            return "–"
        if self.name.endswith("_top1"):
            return f"{100 * value:.1f} %"
        if self.name.endswith("_bytes"):
            return f"{value / 2**30:.2f} GiB"
        if self.name.endswith("_s") and self.name != "images_per_s":
            return f"{value:.3g} s"
        if self.name == GPU_HOURS:
            return f"{value:.3g} h"
        if abs(value) >= 1e12:
            return f"{value:.4g}"
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


@cache
def known_metrics() -> dict[str, Metric]:
    """Name → metric."""
    columns = {name: column for name, column in EpochRecord.columns().items() if name not in POSITIONS}
    found = {name: Metric(name, column.better) for name, column in columns.items() if name not in NOT_ALWAYS}
    return {**found, EPOCH_S: Metric(EPOCH_S, "lower"), GPU_HOURS: Metric(GPU_HOURS, "lower")}


def ceiling_of(name: str) -> float:
    """No value of the metric can be above it; infinite where nothing is known, also of an unknown metric."""
    return 1.0 if name.endswith("_top1") else math.inf


def metric_named(option: str, name: str, own: Sequence[str] | None = ()) -> Metric:
    """The metric of that name. Raises ConfigError, with the nearest name, if there is none.

    ``own``: further names that would do, for the message; None: any, with a direction.
    """
    metrics = known_metrics()
    if name in metrics:
        return metrics[name]
    names = (*(own or ()), *metrics)
    near = nearest_word(name, names)
    fix = f"Did you mean {near!r}?" if near else "" if own is None else f"Write one of {', '.join(names)}."
    if own is None:
        fix += f" A metric of your own needs its direction: {name or 'NAME'}:max or {name or 'NAME'}:min."
    elif name.startswith("val_"):
        fix += " A metric of your own is named with --metric too."
    raise ConfigError(f"{option} names a metric that each trial reports; got {name!r}. {fix.strip()}")


def of_record(name: str, record: Record) -> float:
    """The metric in an epoch's record; not a number where the record lacks it, and for ``gpu_hours``."""
    if name == EPOCH_S:
        return sum(json_values.number(record, part) for part in EPOCH_PARTS)
    own = json_values.mapping(record, OWN)
    return json_values.number(own if name in own else record, name, math.nan)


def of_run(name: str, records: Sequence[Record], gpu_hours: float = math.nan) -> float:
    """The metric of a whole run: of its last epoch, but the median of ``epoch_s`` and the maximum of ``memory_bytes``.

    Args:
        records: of its epochs, the first one first. Not a number without records.
        gpu_hours: what the ledger says of the trial.
    """
    if name == GPU_HOURS:
        return gpu_hours
    values = [of_record(name, record) for record in records]
    if not values:
        return math.nan
    if name == EPOCH_S:
        return statistics.median(values)
    if name == "memory_bytes":
        return max((value for value in values if not math.isnan(value)), default=math.nan)
    return values[-1]
