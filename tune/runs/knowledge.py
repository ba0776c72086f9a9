"""What trials of other studies say: the knowledge of ``--warm-start``. Needs no Optuna.

study.json keeps it, so a resumed search does not need the other studies, and decides as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigbatch.base import json_values

WARM_START = "warm_start"
"""The key in study.json."""
LABEL = "warm start: "
"""The label of a trial begins with this if the trial was enqueued because another study had found it."""


@dataclass(frozen=True)
class KnownTrial:
    """One configuration of another study, with the parameters of this search."""

    number: int
    params: Mapping[str, object]
    values: Mapping[int, float]
    """Epoch → value of the objective. Empty: it diverged before it had one."""
    epochs: int
    """Of its whole run."""
    diverged: bool = False
    group: object = None
    """The value of the frontier's parameter in its own study. Only trials of one group compare."""

    @property
    def finished(self) -> bool:
        """Whether its last value is that of its whole run."""
        return not self.diverged and bool(self.values) and max(self.values) >= self.epochs

    def to_dict(self) -> dict[str, object]:
        """As study.json keeps it."""
        # Pairs, for JSON's keys are texts.
        return {**vars(self), "params": dict(self.params), "values": [[e, v] for e, v in sorted(self.values.items())]}


@dataclass(frozen=True)
class KnownStudy:
    """The trials of another study that lie within this search's space."""

    name: str
    trials: tuple[KnownTrial, ...]

    def groups(self) -> dict[object, list[KnownTrial]]:
        """The trials that compare with each other, by the value of the frontier's parameter."""
        found: dict[object, list[KnownTrial]] = {}
        for trial in self.trials:
            found.setdefault(trial.group, []).append(trial)
        return found

    def to_dict(self) -> dict[str, object]:
        """As study.json keeps it."""
        return {"study": self.name, "trials": [trial.to_dict() for trial in self.trials]}


def stored_knowledge(stored: Mapping[str, object]) -> tuple[KnownStudy, ...]:
    """The knowledge in study.json."""
    return tuple(
        KnownStudy(json_values.text(one, "study"), tuple(map(_trial, json_values.objects(one, "trials"))))
        for one in json_values.objects(stored, WARM_START)
    )


def _trial(stored: Mapping[str, object]) -> KnownTrial:
    points = stored.get("values")
    pairs: Sequence[Sequence[float]] = points if isinstance(points, list) else []
    return KnownTrial(
        number=json_values.whole_number(stored, "number"),
        params=dict(json_values.mapping(stored, "params")),
        values={int(epoch): float(value) for epoch, value in pairs},
        epochs=json_values.whole_number(stored, "epochs"),
        diverged=bool(stored.get("diverged")),
        group=stored.get("group"),
    )
