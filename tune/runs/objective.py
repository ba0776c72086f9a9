"""The objective of a search: which metric it optimises, in which direction, and what no value is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bigbatch.base import json_values
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.plugins.metric_names import metric_name, reported_by
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.metrics import Metric, Record

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
            devices: that it held, 0.5 for a half.
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

    def is_better(self, value: float, other: float) -> bool:
        """Whether ``value`` is strictly better than ``other``."""
        return value > other if self.direction == "maximize" else value < other

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


def chance_level(name: str, num_classes: int) -> float:
    """A metric's value for a network that has learnt nothing; not a number where there is none.

    ``num_classes``: 0 where targets are no classes, or their number is not known.
    """
    if not num_classes or name not in metrics.known_metrics():
        return math.nan
    if name.endswith("_top1"):
        return 1 / num_classes
    # The cross entropy of a prediction that calls all classes equally likely.
    return math.log(num_classes) if name.endswith("_loss") else math.nan


@dataclass(frozen=True)
class Reported:
    """What is known of the metrics that the runs of a study report."""

    num_classes: int = 0
    """0: targets are no classes, or their number is not known."""
    own: Sequence[str] | None = ()
    """The words of ``metrics``; None: any metric of the user's own may be named, as in a study that was checked."""
    own_loss: bool = False
    """Whether the loss is a function of the user's: nobody knows its value at chance level."""

    def may_have(self, name: str) -> bool:
        """Whether a metric of the user's own may have this name."""
        return name.isidentifier() if self.own is None else reported_by(self.own, name)

    @property
    def names(self) -> list[str]:
        """The names of those metrics, without ``val_``."""
        return [metric_name(word) for word in self.own or ()]

    def worst(self, name: str) -> float:
        """``chance_level`` here."""
        return math.nan if self.own_loss and name.endswith("_loss") else chance_level(name, self.num_classes)


def read_objective(option: str, text: str, reported: Reported | int) -> Objective:
    """``val_loss:min`` or ``val_loss`` → the objective.

    Args:
        reported: a number is that of the classes, and nothing else is known.

    Raises ConfigError for an unknown metric, an unknown direction, and a missing one where none is natural.
    """
    facts = reported if isinstance(reported, Reported) else Reported(reported)
    name, colon, word = (part.strip() for part in text.partition(":"))
    known = name in metrics.known_metrics() or (facts.own is None and not colon)  # else a typing error would pass
    own = not known and facts.may_have(name)
    metric = Metric(name, "") if own else metrics.metric_named(option, name, [f"val_{n}" for n in facts.names])
    directions: dict[str, Direction] = {short: full for full, short in SHORT_DIRECTIONS.items()}
    if not colon:
        if metric.better not in NATURAL:
            raise ConfigError(f"{option} needs a direction for {name}; got none. Write {name}:max or {name}:min.")
        return Objective(name, NATURAL[metric.better], facts.worst(name))
    if word not in directions:
        raise ConfigError(f"{option} takes max or min after the colon; got {text!r}. Write {name}:max or {name}:min.")
    return Objective(name, directions[word], facts.worst(name))
