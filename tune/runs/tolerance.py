"""``--tolerance``: by how much a value of the frontier may be worse than the best one and still be the answer.

A tolerance has a unit, because 0.5 points of an accuracy, half a per cent of a perplexity and 0.5 of a loss are three
very different things. Loads no library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.metrics import Metric, known_metrics
from bigbatch.tune.runs.objective import Objective

POINTS, RELATIVE, ABSOLUTE = "pt", "%", ""
_FACTORS = {POINTS: 0.01, RELATIVE: 0.01, ABSOLUTE: 1.0}
_FORM = re.compile(r"(?P<amount>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>pt|%|)")
LARGEST_ABSOLUTE_PROPORTION = 0.1
"""``--tolerance 0.5`` of an accuracy would be 50 points, and whoever writes it means half a point."""


@dataclass(frozen=True)
class Tolerance:
    """``0.5pt``, ``1%`` or ``0.02``."""

    amount: float
    unit: str
    """``pt``: hundredths of a proportion. ``%``: of the best value. Empty: the metric's own unit."""

    def allowance(self, best: float) -> float:
        """By how much a value may be worse than ``best``, in the metric's unit, 0 or more."""
        return self.amount * _FACTORS[self.unit] * (abs(best) if self.unit == RELATIVE else 1.0)

    def words(self, metric: Metric) -> str:
        """``0.5 points``, ``1 %``, ``0.02``: as in "within 0.5 points of the best"."""
        if self.unit == POINTS:
            return f"{self.amount:g} point{'s' * (self.amount != 1)}"
        if self.unit == ABSOLUTE and metric.is_proportion:  # "2 %" would be a part of the best value
            return f"{100 * self.amount:g} points"
        return f"{self.amount:g} %" if self.unit == RELATIVE else metric.text(self.amount)

    def __str__(self) -> str:
        return f"{self.amount:g}{self.unit}"


HALF_A_POINT, ONE_PER_CENT = Tolerance(0.5, POINTS), Tolerance(1.0, RELATIVE)


def read_tolerance(text: str | None, objective: Objective) -> Tolerance:
    """``--tolerance``, or its default: half a point of a proportion, 1 % of any other metric.

    Raises ConfigError for what is no tolerance of this metric: the rule, the value met, and what to write instead.
    """
    proportion = objective.metric.is_proportion
    default = HALF_A_POINT if proportion else ONE_PER_CENT
    if text is None:
        return default
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--tolerance is a number with its unit, such as 0.5pt or 1%; got {text!r}. Write {default}.")
    found = Tolerance(float(match["amount"]), match["unit"])
    if found.amount < 0:
        raise ConfigError(f"--tolerance must not be negative; got {text}. Write e.g. {default}.")
    if not math.isfinite(found.amount):
        raise ConfigError(f"--tolerance must be a finite number; got {text}. Write e.g. {default}.")
    if found.unit != ABSOLUTE and found.amount >= 100:
        raise ConfigError(f"--tolerance of {found} would make every value an answer. Write e.g. {default}.")
    if found.unit == POINTS and not proportion:
        raise ConfigError(
            f"--tolerance in points is for a proportion; got {text} for {objective.name}. Write e.g. {ONE_PER_CENT}."
        )
    if found.unit == ABSOLUTE and proportion and found.amount > LARGEST_ABSOLUTE_PROPORTION:
        raise ConfigError(
            f"--tolerance without a unit is in the metric's own, and {found.amount:g} of {objective.name} is "
            f"{100 * found.amount:g} points; got {text}. Write {found.amount:g}pt for {found.amount:g} points."
        )
    if found.unit == ABSOLUTE and objective.name not in known_metrics():
        raise ConfigError(
            f"--tolerance needs a unit, because none is known of {objective.name}; got {text}. "
            f"Write a part of the best value, e.g. {ONE_PER_CENT}."
        )
    return found


def stored_tolerance(description: Mapping[str, object], objective: Objective) -> Tolerance:
    """That of study.json."""
    return read_tolerance(json_values.text_or_none(description, "tolerance"), objective)
