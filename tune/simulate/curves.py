"""A table of recorded learning curves, the runs that a replay draws its trials from, and the space of such a table.

A **row** is one run: its parameters, its value after each epoch, and when each epoch ended. A row ends early only if
its run diverged. Runs that were stopped or that crashed are in no table: nobody knows how they would have ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.models.protocol import Dimension
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.objective import Objective

Params = Mapping[str, object]

MAX_NUMERIC_CHOICES = 8
"""A number with at most so many different values is a choice among them, as batch sizes are."""
LOG_FROM = 4.0
"""The largest value over the smallest, from which on a logarithmic scale is considered."""

# What the runs say


def infer_dimensions(rows: Sequence[Params]) -> tuple[Dimension, ...]:
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
            found[name] = _distribution(name, values)
    return tuple(Dimension(name, found[name], _condition(name, found, rows)) for name in found)


def _distribution(name: str, values: Sequence[object]) -> BaseDistribution:
    distinct = list(dict.fromkeys(_choice(name, value) for value in values))
    numbers = [float(v) for v in distinct if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < len(distinct):
        if len(distinct) > MAX_NUMERIC_CHOICES and all(map(_is_number_in_text, distinct)):
            raise ConfigError(
                f"a number must not be a text; got {name!r} with {distinct[0]!r}. Write it without quotes."
            )
        return CategoricalDistribution(sorted(distinct, key=str))
    if len(distinct) <= MAX_NUMERIC_CHOICES and len(values) >= 2 * len(distinct):
        return CategoricalDistribution(sorted(distinct))  # type: ignore[type-var]
    low, high, log = min(numbers), max(numbers), _is_log([float(v) for v in values])  # type: ignore[arg-type]
    if all(isinstance(value, int) for value in distinct):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _is_number_in_text(value: object) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _choice(name: str, value: object) -> CategoricalChoiceType:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"a parameter must be finite; got {name!r} with {value}. Leave these runs out.")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"a parameter must be a number, a text or true or false; got {name!r} with a {type(value).__name__}. "
        "Split it into several."
    )


def _is_log(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    if low <= 0 or high / low < LOG_FROM:
        return False
    return _distance_to_uniform(np.log(values)) < _distance_to_uniform(np.asarray(values))


def _distance_to_uniform(values: np.ndarray) -> float:
    """Kolmogorov's distance of the values' distribution to the uniform one on their range."""
    parts = (np.sort(values) - values.min()) / (values.max() - values.min())
    return float(np.abs(parts - (np.arange(len(parts)) + 0.5) / len(parts)).max())


def _condition(
    name: str, found: Mapping[str, BaseDistribution], rows: Sequence[Params]
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


# What a file declares


def declared_dimensions(declared: Mapping[str, object]) -> tuple[Dimension, ...]:
    """The space as a file declares it, e.g. ``{"lr": {"low": 1e-3, "high": 10, "log": true}, "wd": {"low": 0,
    "high": 1, "when": {"optimizer": ["sgd"]}}, "optimizer": {"choices": ["sgd", "lamb"]}}``.

    Raises ConfigError for a declaration that is not of this form.
    """
    return tuple(_declared(name, facts) for name, facts in declared.items())


def _declared(name: str, facts: object) -> Dimension:
    try:
        assert isinstance(facts, Mapping)
        when = {other: tuple(values) for other, values in facts.get("when", {}).items()}
        if "choices" in facts:
            return Dimension(name, CategoricalDistribution(facts["choices"]), when)
        low, high, log = facts["low"], facts["high"], bool(facts.get("log", False))
        whole = isinstance(low, int) and isinstance(high, int) and facts.get("whole", False)
        return Dimension(name, (IntDistribution if whole else FloatDistribution)(low, high, log=log), when)
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()) or "not an object"
        raise ConfigError(
            f'dimensions must look like {{"lr": {{"low": 0.001, "high": 10, "log": true}}}}; got {name!r} with '
            f"{facts!r} ({reason}). Correct the file."
        ) from None


@dataclass(frozen=True)
class RecordedCurve:
    """One recorded run. Raises ConfigError for a curve that cannot be replayed."""

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
        times, count = self.seconds, len(self.values)
        if self.epochs < 1:
            raise ConfigError("a curve must have at least one epoch; got none. Leave the run out.")
        if any(not math.isfinite(value) for value in self.values):
            raise ConfigError("values of a curve must be finite; got one that is not. Mark the run as diverged.")
        if len(times) != count and not (self.diverged and len(times) == count + 1):
            raise ConfigError(
                f"a curve needs the seconds of each value; got {len(times)} for {count}. Add those missing."
            )
        if any(not later > earlier for earlier, later in zip((0.0, *times), times, strict=False)):
            raise ConfigError("seconds of a curve must grow; got some that do not. Give them since the run's begin.")
        if self.diverged and count >= self.epochs:
            raise ConfigError(f"a diverged curve must end before its {self.epochs} epochs; got {count} values. Cut it.")
        if not self.diverged and count != self.epochs:
            raise ConfigError(
                f"a curve must have a value for each of its {self.epochs} epochs; got {count}. "
                "Leave out runs that were stopped, or mark them as diverged."
            )

    @property
    def final(self) -> float | None:
        """The value after the last epoch; None if the run diverged."""
        return None if self.diverged else self.values[-1]


@dataclass(frozen=True)
class CurveTable:
    """Recorded runs of one task. Raises ConfigError if there is nothing to search in it.

    Args:
        declared: the space. None: inferred from the runs.
    """

    name: str
    curves: tuple[RecordedCurve, ...]
    declared: tuple[Dimension, ...] | None = None
    objective: Objective = Objective()

    def __post_init__(self) -> None:
        if not any(not curve.diverged for curve in self.curves):
            raise ConfigError(
                f"a table of curves must have runs that reached their end; got {self.name!r} with none. "
                "Give another file."
            )
        if not self.dimensions:
            raise ConfigError(
                f"a table of curves must have parameters that differ; got {self.name!r} with none. Give another file."
            )

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The parameters of the space, with their ranges, each after those that decide whether it exists."""
        return UnitSpace(self.declared or infer_dimensions([curve.params for curve in self.curves])).dimensions

    def params(self, row: int) -> dict[str, object]:
        """The row's values of the space's parameters, without what the space does not search."""
        names = {dimension.name for dimension in self.dimensions}
        return {name: value for name, value in self.curves[row].params.items() if name in names}

    def without(self, names: Sequence[str]) -> CurveTable:
        """The table without these parameters, e.g. those that follow from others.

        Raises ConfigError for a name that no run has.
        """
        known = list(dict.fromkeys(name for curve in self.curves for name in curve.params))
        for name in names:
            if name not in known:
                raise ConfigError(f"no run has a parameter {name!r}; got {', '.join(known)}. Leave out one of them.")
        curves = tuple(
            replace(curve, params={n: v for n, v in curve.params.items() if n not in names}) for curve in self.curves
        )
        declared = self.declared and tuple(d for d in self.declared if d.name not in names)
        for d in declared or ():
            if needed := next((name for name in d.active_when if name in names), None):
                raise ConfigError(
                    f"{d.name!r} exists only for some values of {needed!r}; got --without {needed}. Leave out both."
                )
        return replace(self, curves=curves, declared=declared)

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
        return sorted(
            (row for row in range(len(curves)) if not curves[row].diverged), key=lambda r: -gain(_end(curves[r]))
        )

    @property
    def best(self) -> float:
        """The best final value."""
        return _end(self.curves[self.order[0]])

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


def _end(curve: RecordedCurve) -> float:
    assert curve.final is not None
    return curve.final


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one file, as a part of a table."""

    name: str
    curves: tuple[RecordedCurve, ...]
    declared: tuple[Dimension, ...] | None = None
    objective: Objective = Objective()


def pooled(parts: Sequence[RecordedRuns]) -> CurveTable:
    """One table with the runs of all parts. Raises ConfigError if they state different spaces or directions."""
    first = parts[0]
    for other in parts[1:]:
        if (other.objective.name, other.objective.direction, other.declared) != (
            first.objective.name,
            first.objective.direction,
            first.declared,
        ):
            raise ConfigError(
                f"files of one pool must agree in metric, direction and declared dimensions; got {first.name!r} and "
                f"{other.name!r}, which differ. Simulate them one by one."
            )
    curves = tuple(curve for part in parts for curve in part.curves)
    return CurveTable("+".join(part.name for part in parts), curves, first.declared, first.objective)
