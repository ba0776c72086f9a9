"""How a trial ends, by what its epochs have shown: at its last epoch, at the target, or beyond a constraint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import TrialState

from bigbatch.search_spaces.trial import Constraint
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.runs import feasible, metrics
from bigbatch.tune.runs.metrics import Record
from bigbatch.tune.runs.objective import failure_of_epoch
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import DIVERGED_ATTR, FAILURE_ATTR, PAUSED_ATTR, STOPPED_ATTR


@dataclass(frozen=True)
class Verdict:
    """The end of a trial."""

    state: TrialState
    because: str
    values: Sequence[float] | None = None
    """One for each objective, if it is COMPLETE."""
    failure: FailureKind | None = None
    """The kind of the failure, if the trial has failed and the kind is known."""
    host: str = ""
    """The node on which the trial failed, in a search on several nodes, if it is known."""

    @property
    def said(self) -> str:
        """Why the trial ends, with the node."""
        return said_of(self.host, self.because)

    @property
    def attrs(self) -> dict[str, object]:
        """The user attributes that say why the trial ends. The study gets them before it gets the end."""
        found: dict[str, object] = {} if self.failure is None else {FAILURE_ATTR: self.failure.value}
        found |= {DIVERGED_ATTR: True} if self.failure == FailureKind.DIVERGED else {}
        return {**found, "ended_because": self.said}


def said_of(host: str, because: str) -> str:
    """A failure and the node on which it was met. ``host``: empty if that is not known or there is no other."""
    return f"on node {host}: {because}" if host else because


def stopped(epoch: int) -> Verdict:
    """The end of a trial that its strategy stops after ``epoch``."""
    return Verdict(TrialState.PRUNED, f"stopped by the scheduler after epoch {epoch}")


def paused(epoch: int) -> Verdict:
    """The end of a trial that its strategy has paused; another trial may continue it."""
    return Verdict(TrialState.PRUNED, f"paused after epoch {epoch}")


def decided(attrs: Mapping[str, object], epoch: int) -> Verdict | None:
    """The end that a strategy had decided when the driver was killed before it told the study; None: it had not.

    Args:
        attrs: the trial's user attributes.
        epoch: of its last record. Without the record of that epoch the trial reports it again, and is looked at again.
    """
    if attrs.get(STOPPED_ATTR) == epoch:
        return stopped(epoch)
    return paused(epoch) if attrs.get(PAUSED_ATTR) == epoch else None


def verdict_on(
    records: Sequence[Record],
    *,
    epochs: int,
    objectives: Objectives,
    constraints: Sequence[Constraint] = (),
    gpu_hours: float = math.nan,
    devices: float = 1,
    returned: bool = False,
) -> Verdict | None:
    """The end of a trial after the last one of its records; None: it goes on.

    It depends on its arguments alone: a driver that finds a trial without its end in the study gets the same verdict.

    Args:
        records: at least one, the first epoch first.
        epochs: of the whole run.
        gpu_hours: what the ledger says of the trial.
        returned: whether the training has ended by itself, perhaps before its last epoch.
    """
    for objective in objectives.each:
        if failure := failure_of_epoch(objective, records[-1]):
            return Verdict(TrialState.FAIL, failure[0], failure=failure[1])
    because = feasible.why_infeasible(constraints, records, gpu_hours)
    if because is not None:
        return Verdict(TrialState.PRUNED, because)
    reached = objectives.first.is_reached(records[-1])
    epoch = int(metrics.of_record("epoch", records[-1]))
    if not reached and epoch < epochs and not returned:
        return None
    values = objectives.finals(records, gpu_hours, devices)
    for objective, value in zip(objectives.each, values, strict=True):
        if not math.isfinite(value):
            return Verdict(TrialState.FAIL, f"{objective.name} was not measured")
    said = "ran to its end" if epoch >= epochs else f"returned after epoch {epoch}"
    said = f"reached {objectives.text} after epoch {epoch}" if reached else said
    return Verdict(TrialState.COMPLETE, said, values)
