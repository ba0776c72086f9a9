"""Which constraints of its space a trial violates, as far as its epochs have shown.

A trial that violates one ends as PRUNED with ``INFEASIBLE_ATTR``: it is never the best, and Optuna's samplers that know
constraints (``trial.constraints``) rank it behind all others, by how far it is beyond its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bigbatch.search_spaces.trial import Constraint, read_constraints
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.metrics import Metric, Record

if TYPE_CHECKING:  # the plan imports this file, and answers before Optuna is loaded
    from optuna.trial import FrozenTrial, Trial

CONSTRAINTS_ATTR = "constraints"
"""User attribute of a trial: name of a constraint → its bounds, and its value if the space knows it."""
INFEASIBLE_ATTR = "infeasible"
"""User attribute of a trial that violates one: name of the constraint → how far, as a part of its bound."""
INFEASIBLE = "infeasible"
"""``ended_because`` of such a trial begins with this word."""


def measured(constraint: Constraint, records: Sequence[Record], gpu_hours: float) -> float:
    """What the constraint bounds, as far as it is known; not a number before the first epoch."""
    if constraint.value is not None:
        return constraint.value
    return metrics.of_run(constraint.name, records, gpu_hours) if records else math.nan


def constraints_of(attrs: Mapping[str, object]) -> list[Constraint]:
    """The constraints among a trial's user attributes."""
    return read_constraints(attrs.get(CONSTRAINTS_ATTR))


def excesses(constraints: Sequence[Constraint], records: Sequence[Record], gpu_hours: float) -> dict[str, float]:
    """Name of a constraint → how far the trial is beyond it (``Constraint.excess``), for all that are known.

    Args:
        records: of the trial's epochs, the first one first.
        gpu_hours: what the ledger says of it.
    """
    values = {constraint: measured(constraint, records, gpu_hours) for constraint in constraints}
    return {one.name: one.excess(value) for one, value in values.items() if not math.isnan(value)}


def why_infeasible(constraints: Sequence[Constraint], records: Sequence[Record], gpu_hours: float) -> str | None:
    """Which constraint the trial violates most, in words; None if it violates none. Arguments: as ``excesses``."""
    beyond = excesses(constraints, records, gpu_hours)
    worst = max(constraints, key=lambda one: beyond.get(one.name, 0.0), default=None)
    if worst is None or beyond.get(worst.name, 0.0) <= 0:
        return None
    value = measured(worst, records, gpu_hours)
    metric = metrics.known_metrics().get(worst.name) if worst.value is None else None
    when = f" after epoch {len(records)}" if metric else ""
    title, is_value = (metric.title, metric.text(value)) if metric else (worst.name, f"{value:g}")
    return f"{INFEASIBLE}{when}: {title} is {is_value}, allowed is {bounds_in_words(worst, metric)}"


def bounds_in_words(constraint: Constraint, metric: Metric | None = None) -> str:
    """E.g. ``at most 60 s``."""
    parts = [("at least", constraint.at_least), ("at most", constraint.at_most)]
    words = [(word, metric.text(bound) if metric else f"{bound:g}") for word, bound in parts if bound is not None]
    return " and ".join(f"{word} {text}" for word, text in words)


def note_constraints(trial: Trial, beyond: Mapping[str, float]) -> None:
    """Write what is known of the constraints into the study, also where Optuna's samplers look for it.

    Call it once, before the study gets the trial's end.
    """
    if violated := {name: excess for name, excess in beyond.items() if excess > 0}:
        trial.set_user_attr(INFEASIBLE_ATTR, violated)
    for name, excess in beyond.items():
        trial.set_constraint(name, excess)


def is_infeasible(trial: FrozenTrial) -> bool:
    """Whether the trial violates a constraint, and so is no answer, however good its values are."""
    return bool(trial.user_attrs.get(INFEASIBLE_ATTR))
