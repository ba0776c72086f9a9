"""The objective of a search: which metric it optimises, in which direction, and what no value is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study import metrics
from bigbatch.tune.study.metrics import Metric, Record

Direction = Literal["maximize", "minimize"]
SHORT_DIRECTIONS: dict[Direction, str] = {"maximize": "max", "minimize": "min"}
NATURAL: dict[str, Direction] = {"higher": "maximize", "lower": "minimize"}


@dataclass(frozen=True)
class Objective:
    """One metric of a trial, and how values of it compare."""

    name: str = "val_top1"
    """A name in ``metrics.known_metrics``."""
    direction: Direction = "maximize"
    worst: float = 0.0
    """What a diverged trial is worth: the metric's value at chance level. Not a number where the metric has none. A
    trial that fails for another reason is worth nothing at all: it says nothing about its hyperparameters."""

    def value(self, record: Record) -> float:
        """What an epoch's record is worth; not a number where the record lacks the metric."""
        return metrics.of_record(self.name, record)

    def final(self, records: Sequence[Record], gpu_hours: float = math.nan, workers: int = 1) -> float:
        """What a trial is worth that has ended as planned.

        Args:
            records: of its epochs, the first one first.
            gpu_hours: what the ledger says of it.
            workers: its devices.
        """
        return metrics.of_run(self.name, records, gpu_hours)

    def is_reached(self, record: Record) -> bool:
        """Whether a trial has nothing more to do after this epoch. Only a search for a target has such an end."""
        return False

    def has_learnt(self, record: Record) -> bool:
        """Whether the epoch's validation is finite, and the metric if training decides it. If not, it has diverged."""
        names = {"val_loss", self.shown.name}
        values = [metrics.of_record(name, record) for name in names if not name.endswith(metrics.COSTS)]
        return all(math.isfinite(value) for value in values)

    def is_better(self, value: float, other: float) -> bool:
        """Whether ``value`` is strictly better than ``other``."""
        return value > other if self.direction == "maximize" else value < other

    def gain(self, value: float) -> float:
        """``value`` with the sign that makes larger better."""
        return value if self.direction == "maximize" else -value

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values; None if none is a number."""
        return max((value for value in values if not math.isnan(value)), key=self.gain, default=None)

    @property
    def has_interval(self) -> bool:
        """Whether its value is a count of right answers, so that an interval follows from the number of images."""
        return self.metric.is_proportion

    # In words

    @property
    def shown(self) -> Objective:
        """The metric that a person watches while a trial runs."""
        return self

    @property
    def metric(self) -> Metric:
        """The metric of this name."""
        return metrics.known_metrics()[self.name]

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


def accuracy(num_classes: int) -> Objective:
    """Validation top-1, 0 to 1. A diverged trial is worth chance level."""
    return Objective("val_top1", "maximize", 1 / num_classes)


def chance_level(name: str, num_classes: int) -> float:
    """A metric's value for a network that has learnt nothing; not a number where there is none."""
    if name.endswith("_top1"):
        return 1 / num_classes
    return math.log(num_classes) if name.endswith("_loss") else math.nan


def read_objective(option: str, text: str, num_classes: int) -> Objective:
    """``val_loss:min`` or ``val_loss`` → the objective.

    Raises ConfigError for an unknown metric, an unknown direction, and a missing one where none is natural.
    """
    name, colon, word = (part.strip() for part in text.partition(":"))
    metric = metrics.metric_named(option, name)
    directions: dict[str, Direction] = {short: full for full, short in SHORT_DIRECTIONS.items()}
    if not colon:
        if metric.better not in NATURAL:
            raise ConfigError(f"{option} needs a direction for {name}; got none. Write {name}:max or {name}:min.")
        return Objective(name, NATURAL[metric.better], chance_level(name, num_classes))
    if word not in directions:
        raise ConfigError(f"{option} takes max or min after the colon; got {text!r}. Write {name}:max or {name}:min.")
    return Objective(name, directions[word], chance_level(name, num_classes))
