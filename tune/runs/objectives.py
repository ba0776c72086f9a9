"""All objectives of a search: usually one. With several there is a front instead of a best trial: ``pareto.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.train_config import LOSSES
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.metrics import Record
from bigbatch.tune.runs.objective import Direction, Objective, Reported, TimeToTarget, read_objective, read_target
from bigbatch.tune.runs.run import AnyTrial, OneTrial

DEFAULT_OBJECTIVE = "val_top1:max"
"""The objective of a search of classes that does not say any."""
WITHOUT_CLASSES = "val_loss:min"
"""What is optimised where targets are no classes and nothing was asked for."""


@dataclass(frozen=True)
class Objectives:
    """What a search optimises. The order counts: of equal trials, and for ``best.json``, the first one decides."""

    each: tuple[Objective, ...] = (Objective(),)

    @property
    def first(self) -> Objective:
        """The objective that early stopping, displays and ``best.json`` follow."""
        return self.each[0]

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.each) > 1

    @property
    def one_metric(self) -> bool:
        """Whether it is the value of one metric at the end of a run, and no time to a target."""
        return not self.several and not isinstance(self.first, TimeToTarget)

    @property
    def text(self) -> str:
        """As on the command line and in study.json: ``val_top1:max,gpu_hours:min``."""
        return ",".join(objective.text for objective in self.each)

    @property
    def directions(self) -> list[Direction]:
        """As Optuna wants them."""
        return [objective.direction for objective in self.each]

    def finals(self, records: Sequence[Record], gpu_hours: float = math.nan, devices: float = 1) -> list[float]:
        """What a trial is worth that has ended as planned, one value for each objective; see ``Objective.final``."""
        return [objective.final(records, gpu_hours, devices) for objective in self.each]

    def best(self, trials: Iterable[OneTrial]) -> OneTrial | None:
        """The completed trial that is best in the first objective. None if none is complete.

        Of several equal ones it is the best in the next objective, then the earliest. So it is always on the front.
        """
        return max(_complete(trials), key=lambda t: (*self.gains(t.values), -t.number), default=None)

    def front(self, trials: Sequence[AnyTrial]) -> list[AnyTrial]:
        """The completed trials that no other one beats: as good in all objectives, better in one. Best first.

        What beats a trial comes before it among the ranked ones; and if anything beats it, something on the front does.
        """
        # A dict as an ordered set: trials with equal values are compared once.
        front, found = dict[tuple[float, ...], None](), list[AnyTrial]()
        for trial in self.ranked(trials):
            gains = self.gains(trial.values)
            if not any(_beats(other, gains) for other in front):
                front[gains] = None
                found.append(trial)
        return found

    def ranked(self, trials: Iterable[OneTrial]) -> list[OneTrial]:
        """The completed trials, best first, in the order of ``best``."""
        return sorted(_complete(trials), key=lambda t: (*self.gains(t.values), -t.number), reverse=True)

    def named(self, values: Sequence[float]) -> dict[str, float]:
        """Name of an objective → its value."""
        return {objective.name: value for objective, value in zip(self.each, values, strict=True)}

    def gains(self, values: Sequence[float]) -> tuple[float, ...]:
        """Values with the signs that make larger better. Raises ValueError for another number of values."""
        if len(values) != len(self.each):
            raise ValueError(f"{self.text} are not as many metrics as a trial has values ({len(values)})")
        return tuple(objective.gain(value) for objective, value in zip(self.each, values, strict=True))


def _complete(trials: Iterable[OneTrial]) -> list[OneTrial]:
    return [t for t in trials if t.state.name == "COMPLETE" and t.values]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def objectives_of(description: Mapping[str, object]) -> Objectives:
    """The objectives of a study, from its study.json."""
    objective = json_values.text(description, "objective", DEFAULT_OBJECTIVE)
    reported = Reported(own=None) if description.get("trainable") else facts_of_runs(description)
    return read_objectives("study.json", objective, reported)


def facts_of_runs(description: Mapping[str, object]) -> Reported:
    """What study.json says of the metrics that the runs of our training loop report."""
    classes = json_values.whole_number(description, "num_classes", 1)
    loss = json_values.text(json_values.mapping(description, "overrides"), "loss")
    return Reported(0 if description.get("are_classes") is False else classes, None, bool(loss) and loss not in LOSSES)


def read_objectives(option: str, text: str, reported: Reported) -> Objectives:
    """``val_top1:max,gpu_hours:min``, or the target ``val_top1=0.759`` → the objectives.

    Raises ConfigError for what ``read_objective`` and ``read_target`` refuse, a metric that is named twice, and device
    hours as the only objective.
    """
    if "=" in text:
        return Objectives((read_target(text, reported),))
    each = tuple(read_objective(option, part, reported) for part in text.split(","))
    names = [objective.name for objective in each]
    for objective in each:
        same = [other for other in each if other.name == objective.name]
        if len(same) > 1:
            both = " and ".join(other.text for other in same[:2])
            raise ConfigError(f"{option} names each metric once, in one direction; got {both}. Keep one of them.")
    if names == [metrics.GPU_HOURS]:
        own = reported.own is None
        fix = "--target val_top1=0.759, or --objectives val_top1:max,gpu_hours:min"
        raise ConfigError(
            f"{option} needs more than {metrics.GPU_HOURS}, or what learns nothing is the best; got {text}. "
            f"Write {'--objectives accuracy:max,gpu_hours:min' if own else fix}."
        )
    return Objectives(each)


SCHEMA_VERSION = 1
PARETO_FILE = "pareto.json"


def write_front(objectives: Objectives, trials: Sequence[AnyTrial], path: Path) -> None:
    """Write the front, the best trial in the first objective first. The keys are in docs/objectives.md."""
    front = [
        {
            "trial": trial.number,
            "values": objectives.named(trial.values),
            "parameters": trial.params,
            "config": trial.user_attrs.get("config", {}),
        }
        for trial in objectives.front(trials)
    ]
    described = [{"name": objective.name, "direction": objective.direction} for objective in objectives.each]
    write_json(path, {"schema_version": SCHEMA_VERSION, "objectives": described, "front": front}, indent=2)
