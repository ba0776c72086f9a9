"""The objective of a search: which reported metric it optimises, in which direction, and what no value is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bigbatch.cluster.host import json_values

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Objective:
    """One metric of an epoch's record, and how values of it compare."""

    name: str = "val_top1"
    """A field of ``EpochRecord``."""
    direction: Direction = "maximize"
    worst: float = 0.0
    """What a diverged trial is worth: the metric's value at chance level. A trial that fails for another reason is
    worth nothing at all: it says nothing about its hyperparameters."""

    def value(self, record: Mapping[str, object]) -> float:
        """The metric in an epoch's record; not a number where the record lacks it."""
        return json_values.number(record, self.name, math.nan)

    def is_better(self, value: float, other: float) -> bool:
        """Whether ``value`` is strictly better than ``other``."""
        return value > other if self.direction == "maximize" else value < other

    def gain(self, value: float) -> float:
        """``value`` with the sign that makes larger better."""
        return value if self.direction == "maximize" else -value


def accuracy(num_classes: int) -> Objective:
    """Validation top-1, 0 to 1. A diverged trial is worth chance level."""
    return Objective("val_top1", "maximize", 1 / num_classes)
