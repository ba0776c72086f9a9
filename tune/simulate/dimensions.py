"""The space of a table of runs: each parameter's range, its scale, and when it exists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
