"""The objective of a search: which metric it optimises, in which direction, and what a diverged trial is worth.

``TimeToTarget`` is an objective too: the device hours in which a trial reaches a value of a metric. Fewer are better.

``--tolerance`` says how much worse than the best one a value of the frontier may be and still be the answer. It has a
unit, because 0.5 points of an accuracy, half a per cent of a perplexity and 0.5 of a loss are three very different
things.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.plugins.metric_names import metric_name, reported_by
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.metrics import Metric, Record, known_metrics

Direction = Literal["maximize", "minimize"]
SHORT_DIRECTIONS: dict[Direction, str] = {"maximize": "max", "minimize": "min"}
NATURAL: dict[str, Direction] = {"higher": "maximize", "lower": "minimize"}


@dataclass(frozen=True)
class Objective:
    """One metric of a trial, and how values of it compare."""

    name: str = "val_top1"
    """A name in ``metrics.known_metrics``, or that of a metric of the user's own."""
    direction: Direction = "maximize"
    worst: float = 0.0
    """What a diverged trial is worth: the metric's value at chance level. Not a number where the metric has none. A
    trial that fails for another reason is worth nothing at all: it says nothing about its hyperparameters."""

    def value(self, record: Record) -> float:
        """What an epoch's record is worth; not a number where the record lacks the metric."""
        return metrics.of_record(self.name, record)

    def final(self, records: Sequence[Record], gpu_hours: float = math.nan, devices: float = 1) -> float:
        """What a trial is worth that has ended as planned.

        Args:
            records: of its epochs, the first one first.
            gpu_hours: what the ledger says of it.
            devices: how many it held; 0.5 for half of one.
        """
        return metrics.of_run(self.name, records, gpu_hours)

    def held_out(self, record: Record) -> float:
        """As ``value``, on the validation examples that made no choice; not a number where none were measured."""
        name = self.name.removeprefix("val_")
        return metrics.of_record(f"holdout_{name}", record) if name != self.name else math.nan

    def is_reached(self, record: Record) -> bool:
        """Whether a trial has nothing more to do after this epoch. Only a search for a target has such an end."""
        return False

    def is_reported(self, record: Record) -> bool:
        """Whether the epoch's record has the metric: a number, or null for what was computed and is no number."""
        name = self.shown.name
        if name in json_values.mapping(record, metrics.OWN) or name.endswith(metrics.COSTS):
            return True
        return name in record and not (name.endswith("_top1") and record[name] is None)

    def has_learnt(self, record: Record) -> bool:
        """Whether the epoch's validation is finite, and the metric if training decides it. If not, it has diverged."""
        names = {"val_loss", self.shown.name} if "val_loss" in record else {self.shown.name}
        values = [metrics.of_record(name, record) for name in names if not name.endswith(metrics.COSTS)]
        return all(math.isfinite(value) for value in values)

    def gain(self, value: float) -> float:
        """``value`` with the sign that makes larger better."""
        return value if self.direction == "maximize" else -value

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values; None if none is a finite number."""
        return max((value for value in values if math.isfinite(value)), key=self.gain, default=None)

    # In words

    @property
    def shown(self) -> Objective:
        """The metric that a person watches while a trial runs."""
        return self

    @property
    def metric(self) -> Metric:
        """The metric of this name."""
        return metrics.known_metrics().get(self.name) or Metric(self.name, "")

    @property
    def text(self) -> str:
        """As on the command line: ``val_loss:min``."""
        return f"{self.name}:{SHORT_DIRECTIONS[self.direction]}"

    @property
    def sentence(self) -> str:
        """For the plan: ``validation loss, lower is better``."""
        return f"{self.metric.title}, {'higher' if self.direction == 'maximize' else 'lower'} is better"

    def worth(self, value: float | None) -> str:
        """A value in words, with its unit."""
        return self.metric.text(value)


def failure_of_epoch(objective: Objective, record: Record) -> tuple[str, FailureKind] | None:
    """Why a trial cannot go on after this epoch, and the kind; None if it can.

    It has diverged if its validation is not finite. If its records lack the objective, the configuration is wrong.
    """
    name, epoch = objective.shown.name, json_values.whole_number(record, "epoch")
    if objective.is_reported(record):
        learns = objective.has_learnt(record)
        return None if learns else (f"validation was not finite in epoch {epoch}", FailureKind.DIVERGED)
    there = [found for found in ("val_top1", "val_loss") if record.get(found) is not None]
    there += list(json_values.mapping(record, metrics.OWN))
    why = " (it needs outputs [N, K] and targets [N] that are classes)" if name.endswith("_top1") else ""
    text = f"the objective {name} must be reported{why}; got {', '.join(there)}. Write --objective with one of them"
    return text, FailureKind.CONFIGURATION


@dataclass(frozen=True)
class Reported:
    """What is known of the metrics that the runs of a study report."""

    num_classes: int = 0
    """0: targets are no classes, or their number is not known."""
    own: Sequence[str] | None = ()
    """The words of ``metrics``; None: any metric of the user's own may be named, as in a study that was checked."""
    own_loss: bool = False
    """Whether the loss is a function of the user's: nobody knows its value at chance level."""

    def worst(self, name: str) -> float:
        """A metric's value for a network that has learnt nothing; not a number where there is none."""
        if self.num_classes and name in metrics.known_metrics():
            if name.endswith("_top1"):
                return 1 / self.num_classes
            if name.endswith("_loss") and not self.own_loss:
                return math.log(self.num_classes)  # of a prediction that calls all classes equally likely
        return math.nan


def read_objective(option: str, text: str, reported: Reported) -> Objective:
    """``val_loss:min`` or ``val_loss`` → the objective.

    Raises ConfigError for an unknown metric, an unknown direction, and a missing one where none is natural.
    """
    name, colon, word = (part.strip() for part in text.partition(":"))
    known = name in metrics.known_metrics() or (reported.own is None and not colon)  # else a typing error would pass
    own = not known and (bool(name) if reported.own is None else reported_by(reported.own, name))
    others = None if reported.own is None else [f"val_{metric_name(word)}" for word in reported.own]
    metric = Metric(name, "") if own else metrics.metric_named(option, name, others)
    directions: dict[str, Direction] = {short: full for full, short in SHORT_DIRECTIONS.items()}
    if not colon:
        if metric.better not in NATURAL:
            raise ConfigError(f"{option} needs a direction for {name}; got none. Write {name}:max or {name}:min.")
        return Objective(name, NATURAL[metric.better], reported.worst(name))
    if word not in directions:
        raise ConfigError(f"{option} takes max or min after the colon; got {text!r}. Write {name}:max or {name}:min.")
    return Objective(name, directions[word], reported.worst(name))


UNREACHED_H = 1e6
"""The least value of a trial that misses the target, in device hours: more than any trial takes."""


@dataclass(frozen=True)
class TimeToTarget(Objective):
    """Device hours until a metric has reached a value.

    A trial's hours are the seconds of its epochs (training, precise BatchNorm, validation, checkpoints) up to the one
    that reached the target, times its devices. Start-up does not count: it says nothing about the configuration.

    A trial that ends without reaching the target is worth ``UNREACHED_H`` and its gap: how far its best epoch was
    from the target, as a part of the target. So every trial that reaches it is better, and the others are ordered.
    The value of an epoch, for early stopping, is the gap of this epoch alone.
    """

    name: str = "gpu_hours"
    direction: Direction = "minimize"
    worst: float = UNREACHED_H + 1
    reach: Objective = field(default_factory=Objective)
    """The metric that must reach the target."""
    target: float = 0.0

    def value(self, record: Record) -> float:
        """The gap of this epoch; 0 when it has reached the target."""
        value = self.reach.value(record)
        short = self.reach.gain(self.target) - self.reach.gain(value)
        # Nothing is a part of 0: with such a target the gap itself counts.
        return max(0.0, short) / (abs(self.target) or 1.0) if not math.isnan(value) else math.nan

    def final(self, records: Sequence[Record], gpu_hours: float = math.nan, devices: float = 1) -> float:
        """Device hours to the target, or ``UNREACHED_H`` and the smallest gap."""
        seconds, gap = 0.0, math.inf
        for record in records:
            seconds += metrics.of_record(metrics.EPOCH_S, record)
            gap = min(gap, self.value(record))
            if gap == 0:
                return seconds * devices / 3600
        return UNREACHED_H + gap if math.isfinite(gap) else math.nan

    def is_reached(self, record: Record) -> bool:
        """Whether this epoch has reached the target."""
        return self.value(record) == 0

    @property
    def shown(self) -> Objective:
        """The metric that must reach the target."""
        return self.reach

    @property
    def text(self) -> str:
        """As on the command line: ``val_top1=0.759``."""
        natural = NATURAL.get(self.reach.metric.better) == self.reach.direction
        return f"{self.reach.name if natural else self.reach.text}={self.target:g}"

    @property
    def goal(self) -> str:
        """``a validation top-1 of 75.9 %``."""
        title = self.reach.metric.title
        return f"{'an' if title[0] in 'aeiou' else 'a'} {title} of {self.reach.worth(self.target)}"

    @property
    def sentence(self) -> str:
        """For the plan."""
        return f"device hours to {self.goal}, fewer are better; a trial ends when it reaches it"

    def worth(self, value: float | None) -> str:
        """Hours, or how much of the target was missed."""
        if value is not None and value >= UNREACHED_H:
            return f"missed by {100 * (value - UNREACHED_H):.1f} % of the target"
        return super().worth(value)


def read_target(text: str, reported: Reported) -> TimeToTarget:
    """``val_top1=0.759`` → the objective. Raises ConfigError for an unknown metric, for what is a cost, and for a value
    that the metric cannot have."""
    name, equals, number = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"--target is METRIC=VALUE; got {text!r}. Write e.g. --target val_top1=0.759.")
    reach = read_objective("--target", name, reported)
    example = "val_top1=0.759" if reach.name in metrics.known_metrics() else f"{reach.text}=0.9"
    if reach.name.endswith(metrics.COSTS):
        raise ConfigError(
            f"--target needs a metric that training improves; got {reach.name!r}. Write e.g. --target val_top1=0.759."
        )
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    top1, loss = reach.name.endswith("_top1"), reach.name.endswith("_loss")
    if not math.isfinite(value) or (top1 and not 0 < value <= 1) or (loss and value <= 0):
        where = " above 0 and at most 1" if top1 else " above 0" if loss else ""
        raise ConfigError(
            f"--target of {reach.name} is a number{where}; got {number!r}. Write e.g. --target {example}."
        )
    return TimeToTarget(reach=reach, target=value)


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
    found = Tolerance(float(match["amount"]), match["unit"]) if match else Tolerance(math.nan, RELATIVE)
    if not 0 <= found.amount < (math.inf if found.unit == ABSOLUTE else 100):
        raise ConfigError(f"--tolerance is 0.5pt, 1% or a number in the metric's unit; got {text!r}. Write {default}.")
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
