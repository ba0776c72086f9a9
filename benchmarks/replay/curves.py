"""A table of recorded learning curves, the runs that a replay draws its trials from, and the space of such a table.

A **row** is one run: its parameters, its value after each epoch, and when each epoch ended. A row ends early only if
its run diverged. Runs that were stopped or that crashed are in no table: nobody knows how they would have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.models.protocol import Dimension
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.objective import Objective

MAX_NUMERIC_CHOICES = 8
"""A number with at most so many different values is a choice among them, as batch sizes are."""
LOG_FROM = 4.0
"""The largest value over the smallest, from which on a logarithmic scale is considered."""


def infer_dimensions(rows: Sequence[Mapping[str, object]]) -> tuple[Dimension, ...]:
    """The parameters that differ among the runs, with the ranges that they cover.

    Numbers of few values are choices. A range is logarithmic if the runs' values are closer to uniform on that scale
    (Kolmogorov's distance). A parameter that some runs lack must exist for certain values of one choice.

    Raises ConfigError if no choice decides whether a parameter exists.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    found: dict[str, BaseDistribution] = {}
    for name in names:
        values = [row[name] for row in rows if name in row]
        if any(value != values[0] for value in values):
            found[name] = _distribution(values)
    return tuple(Dimension(name, found[name], _condition(name, found, rows)) for name in found)


def _distribution(values: Sequence[object]) -> BaseDistribution:
    distinct = list(dict.fromkeys(values))
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return CategoricalDistribution(sorted(distinct, key=str))  # type: ignore[arg-type]
    if len(distinct) <= MAX_NUMERIC_CHOICES and len(values) >= 2 * len(distinct):
        return CategoricalDistribution(sorted(set(numbers)))
    low, high, log = min(numbers), max(numbers), _is_log(np.array(numbers, float))
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _is_log(values: np.ndarray) -> bool:
    if values.min() <= 0 or values.max() / values.min() < LOG_FROM:
        return False
    return _distance_to_uniform(np.log(values)) < _distance_to_uniform(values)


def _distance_to_uniform(values: np.ndarray) -> float:
    """Kolmogorov's distance of the values' distribution to the uniform one on their range."""
    parts = (np.sort(values) - values.min()) / (values.max() - values.min())
    return float(np.abs(parts - (np.arange(len(parts)) + 0.5) / len(parts)).max())


def _condition(
    name: str, found: Mapping[str, BaseDistribution], rows: Sequence[Mapping[str, object]]
) -> dict[str, tuple[object, ...]]:
    """The choice that alone decides whether ``name`` exists, with its values; empty if it always exists."""
    if all(name in row for row in rows):
        return {}
    for other, distribution in found.items():
        if not isinstance(distribution, CategoricalDistribution) or any(other not in row for row in rows):
            continue
        having = {row[other] for row in rows if name in row}
        if not having & {row[other] for row in rows if name not in row}:
            return {other: tuple(choice for choice in distribution.choices if choice in having)}
    raise ConfigError(
        f"a parameter that some runs lack must depend on one choice that all have; got {name!r}, which no choice "
        "decides. Give it a value everywhere, or leave it out."
    )


@dataclass(frozen=True)
class RecordedCurve:
    """One recorded run."""

    params: Mapping[str, object]
    """Name → value. A parameter that does not exist in this run is absent."""
    values: tuple[float, ...]
    """After each epoch, the first epoch first. A diverged run has those before it diverged."""
    seconds: tuple[float, ...]
    """When each epoch ended, since the run's begin. A diverged run may have one more: when it diverged."""
    epochs: int
    """The epochs that the run was to train."""
    diverged: bool = False
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        count, times = len(self.values), np.array(self.seconds)
        whole = count < self.epochs if self.diverged else count == self.epochs
        if not whole or not np.isfinite(self.values).all() or len(times) not in (count, count + self.diverged):
            raise ValueError(f"no curve of {self.epochs} epochs: {count} values, {len(times)} seconds, {self.params}")
        if not (np.diff(times, prepend=0.0) > 0).all():
            raise ValueError(f"the seconds of a curve must grow: {self.params}")

    @property
    def final(self) -> float | None:
        """The value after the last epoch; None if the run diverged."""
        return None if self.diverged else self.values[-1]


@dataclass(frozen=True)
class CurveTable:
    """Recorded runs of one task, of which one at least has reached its end.

    Args:
        declared: the space. None: inferred from the runs.
    """

    name: str
    curves: tuple[RecordedCurve, ...]
    declared: tuple[Dimension, ...] | None = None
    objective: Objective = Objective()

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The parameters of the space, with their ranges, each after those that decide whether it exists."""
        return UnitSpace(self.declared or infer_dimensions([curve.params for curve in self.curves])).dimensions

    def params(self, row: int) -> dict[str, object]:
        """The row's values of the space's parameters, without what the space does not search."""
        names = {dimension.name for dimension in self.dimensions}
        return {name: value for name, value in self.curves[row].params.items() if name in names}

    def without(self, names: Sequence[str]) -> CurveTable:
        """The table without these parameters, e.g. those that follow from others. Its space is inferred."""
        curves = (replace(c, params={n: v for n, v in c.params.items() if n not in names}) for c in self.curves)
        return replace(self, curves=tuple(curves), declared=None)

    def at_epoch_s(self, epoch_s: float) -> CurveTable:
        """The table as if its mean epoch took ``epoch_s``: small recorded runs stand for large ones."""
        factor = epoch_s / self.epoch_s
        curves = tuple(replace(c, seconds=tuple(factor * s for s in c.seconds)) for c in self.curves)
        return replace(self, curves=curves)

    @property
    def max_epochs(self) -> int:
        """Of the longest run."""
        return max(curve.epochs for curve in self.curves)

    @cached_property
    def run_s(self) -> float:
        """Seconds of a mean run, diverged ones included: one full-run equivalent."""
        return float(np.mean([curve.seconds[-1] for curve in self.curves if curve.seconds]))

    @cached_property
    def epoch_s(self) -> float:
        """Seconds of a mean epoch."""
        spans = [curve.seconds[len(curve.values) - 1] / len(curve.values) for curve in self.curves if curve.values]
        return float(np.mean(spans))

    @cached_property
    def order(self) -> list[int]:
        """The rows that reached their end, the best first."""
        gain, curves = self.objective.gain, self.curves
        ended = [row for row in range(len(curves)) if not curves[row].diverged]
        return sorted(ended, key=lambda row: -gain(curves[row].values[-1]))

    @property
    def best(self) -> float:
        """The best final value."""
        return self.curves[self.order[0]].values[-1]

    @cached_property
    def worst(self) -> float:
        """What a diverged run is worth: the worst first value of all runs, about chance level."""
        first = [curve.values[0] for curve in self.curves if curve.values]
        return min(first) if self.objective.direction == "maximize" else max(first)

    @cached_property
    def scale(self) -> float:
        """100 if all values are shares, so that a difference times this is one in points; else 1."""
        return 100.0 if all(0 <= v <= 1 for curve in self.curves for v in curve.values) else 1.0

    def regret(self, value: float | None) -> float:
        """How much worse than the best row ``value`` is; None: as the worst."""
        return self.objective.gain(self.best) - self.objective.gain(self.worst if value is None else value)
