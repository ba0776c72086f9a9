"""What is known of configurations: a learning curve of each. Those of other studies are the knowledge of
``--warm-start``. Needs no Optuna.

study.json keeps that knowledge, so a resumed search does not need the other studies, and decides as an uninterrupted
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bigbatch.base import json_values
from bigbatch.tune.runs.objective import Objective

WARM_START = "warm_start"
"""The key in study.json."""
LABEL = "warm start: "
"""The label of a trial begins with this if the trial was enqueued because another study had found it."""


@dataclass
class Curve:
    """What is known of one configuration: of a trial, its continuation and its retries together."""

    number: int
    """Of its first trial."""
    params: Mapping[str, object]
    gains: dict[int, float]
    """Epoch → value, with the sign that makes larger better."""
    epochs: int
    """Of its whole run."""
    diverged: bool = False
    """Its values before the divergence say nothing about its end."""
    group: object = None
    """The value of the frontier's parameter in its own study. Only curves of one group compare."""
    infeasible: bool = False
    """Whether it violates a constraint, or the space has refused it. Then it is worth as little as a diverged run."""
    epoch_s: float | None = None
    """Median device seconds of its epochs, with validation. The first epoch does not count: in it processes start and
    libraries choose their algorithms. None if not known."""

    @property
    def best(self) -> float:
        """The best value so far; −inf without one."""
        return max(self.gains.values(), default=-math.inf)

    @property
    def last(self) -> float:
        """The latest value; −inf without one."""
        return self.gains[max(self.gains)] if self.gains else -math.inf

    @property
    def part(self) -> float:
        """The part of its run up to the latest value."""
        return max(self.gains, default=0) / self.epochs

    def at(self, part: float) -> float | None:
        """The value at this part of its run, rounded up to whole epochs; None if it is not known."""
        # A part of a run may come out as a little more than a whole number of epochs.
        return self.gains.get(math.ceil(part * self.epochs - 1e-9))

    @property
    def run_s(self) -> float | None:
        """Device seconds of its whole run; None if the time of its epochs is not known."""
        return None if self.epoch_s is None else self.epochs * self.epoch_s

    @property
    def finished(self) -> bool:
        """Whether its last value is that of its whole run, and one that counts."""
        return self.competes and max(self.gains) >= self.epochs

    @property
    def competes(self) -> bool:
        """Whether it may be the best: it has a value, has not diverged, and violates no constraint."""
        return bool(self.gains) and not self.diverged and not self.infeasible


@dataclass(frozen=True)
class KnownStudy:
    """The curves of another study that lie within this search's space, with this search's parameters."""

    name: str
    curves: tuple[Curve, ...]

    def groups(self) -> dict[object, list[Curve]]:
        """The curves that compare with each other, by the value of the frontier's parameter."""
        found: dict[object, list[Curve]] = {}
        for curve in self.curves:
            found.setdefault(curve.group, []).append(curve)
        return found

    def to_dict(self, objective: Objective) -> dict[str, object]:
        """As study.json keeps it: with the values themselves, not the gains."""
        return {"study": self.name, "trials": [_to_dict(curve, objective) for curve in self.curves]}


def best_first(curves: Iterable[Curve]) -> list[Curve]:
    """The finished ones, the best first."""
    return sorted((curve for curve in curves if curve.finished), key=lambda curve: (-curve.last, curve.number))


def stored_knowledge(stored: Mapping[str, object], objective: Objective) -> tuple[KnownStudy, ...]:
    """The knowledge in study.json."""
    return tuple(
        KnownStudy(
            json_values.text(one, "study"),
            tuple(_from_dict(trial, objective) for trial in json_values.objects(one, "trials")),
        )
        for one in json_values.objects(stored, WARM_START)
    )


def _to_dict(curve: Curve, objective: Objective) -> dict[str, object]:
    return {
        "number": curve.number,
        "params": dict(curve.params),
        # The gain of a gain is the value. Pairs, for JSON's keys are texts.
        "values": [[epoch, objective.gain(gain)] for epoch, gain in sorted(curve.gains.items())],
        "epochs": curve.epochs,
        "diverged": curve.diverged,
        "group": curve.group,
    }


def _from_dict(stored: Mapping[str, object], objective: Objective) -> Curve:
    points = stored.get("values")
    pairs: Sequence[Sequence[float]] = points if isinstance(points, list) else []
    return Curve(
        number=json_values.whole_number(stored, "number"),
        params=dict(json_values.mapping(stored, "params")),
        gains={int(epoch): objective.gain(float(value)) for epoch, value in pairs},
        epochs=json_values.whole_number(stored, "epochs"),
        diverged=bool(stored.get("diverged")),
        group=stored.get("group"),
    )
