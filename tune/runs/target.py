"""Time to a target: the device hours in which a trial reaches a value of a metric. Fewer are better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.metrics import Record
from bigbatch.tune.runs.objective import NATURAL, Direction, Objective, Reported, read_objective

UNREACHED_H = 1e6
"""What a trial that misses the target is worth at least, in device hours: more than any trial takes."""


@dataclass(frozen=True)
class TimeToTarget(Objective):
    """Device hours until a metric has reached a value.

    A trial's hours are the seconds of its epochs (training, precise BatchNorm, validation, checkpoints) up to the one
    that reached the target, times its devices. Start-up does not count: it says nothing about the configuration.

    A trial that ends without reaching the target is worth ``UNREACHED_H`` and its gap: how far its best epoch was
    from the target, as a part of the target. So every trial that reaches it is better, and the others are ordered.
    What an epoch is worth, for early stopping, is the smallest gap that its record alone shows.
    """

    name: str = "gpu_hours"
    direction: Direction = "minimize"
    worst: float = UNREACHED_H + 1
    reach: Objective = field(default_factory=Objective)
    """The metric that must reach the target."""
    target: float = 0.0

    def value(self, record: Record) -> float:
        """The gap of this epoch; 0 when it has reached the target."""
        return self._gap(self.reach.value(record))

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

    def _gap(self, value: float) -> float:
        short = self.reach.gain(self.target) - self.reach.gain(value)
        # Nothing is a part of 0: with such a target the gap itself counts.
        return max(0.0, short) / (abs(self.target) or 1.0) if not math.isnan(value) else math.nan

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


def read_target(text: str, reported: Reported | int) -> TimeToTarget:
    """``val_top1=0.759`` → the objective. Raises ConfigError for an unknown metric, and a value that it cannot have."""
    name, equals, number = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"--target is METRIC=VALUE; got {text!r}. Write e.g. --target val_top1=0.759.")
    return target_of(read_objective("--target", name, reported), number)


def target_of(reach: Objective, number: str) -> TimeToTarget:
    """The target of a metric. Raises ConfigError for what is a cost, and for a value that the metric cannot have."""
    example = "val_top1=0.759" if reach.name in metrics.known_metrics() else f"{reach.text}=0.9"
    if reach.name.endswith(metrics.COSTS):
        raise ConfigError(
            f"--target needs a metric that training improves; got {reach.name!r}. Write e.g. --target val_top1=0.759."
        )
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--target needs a number; got {number!r}. Write e.g. --target {example}.")
    if reach.name.endswith("_top1") and not 0 < value <= 1:
        raise ConfigError(
            f"--target of {reach.name} is a fraction above 0 and at most 1; got {number}. "
            f"Write e.g. --target {reach.name}=0.759."
        )
    if reach.name.endswith("_loss") and value <= 0:
        raise ConfigError(
            f"--target of {reach.name} is above 0, where no run arrives; got {number}. "
            f"Write e.g. --target {reach.name}=0.5."
        )
    return TimeToTarget(reach=reach, target=value)
