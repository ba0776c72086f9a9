"""What came of trials that were trained again with fresh seeds. ``confirmation.py`` says which trials these are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import TrialState

from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import (
    SEED_ATTR,
    AnyTrial,
    Kind,
    confirmed_by,
    epoch_records,
    has_diverged,
    of_kind,
    retried_trials,
)


@dataclass(frozen=True)
class Confirmed:
    """What the fresh seeds of one trial came to. Values are those of the objective."""

    trial: int
    chosen_at: float
    """The value for which the trial was chosen."""
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """By seed. A run that diverged has the objective's worst value, which may be no number."""
    holdout: tuple[float, ...]
    """The same on the validation examples that made no choice, by seed; empty without them."""
    diverged: int = 0
    """How many of the runs diverged."""

    @property
    def mean(self) -> float:
        """The mean over the seeds, by which trials are compared. No number if a run diverged, where nobody knows what
        that is worth."""
        return statistics.fmean(self.values)


def confirmations(trials: Sequence[AnyTrial]) -> list[AnyTrial]:
    """The runs that confirm a trial with another seed, without those that ``--retry-failed`` has repeated."""
    again = retried_trials(trials)
    return [t for t in of_kind(trials, Kind.CONFIRMATION) if t.number not in again]


def diverged_confirmations(trials: Sequence[AnyTrial]) -> Counter[int]:
    """Number of a confirmed trial → how many of its runs with other seeds diverged."""
    return Counter(confirmed_by(t) or 0 for t in confirmations(trials) if has_diverged(t))


def failed_confirmations(trials: Sequence[AnyTrial]) -> Counter[int]:
    """Number of a trial → how many of its runs with other seeds ended without a result."""
    failed = (t for t in confirmations(trials) if t.state == TrialState.FAIL and not has_diverged(t))
    return Counter(confirmed_by(t) or 0 for t in failed)


def confirmed_trials(trials: Sequence[AnyTrial], objective: Objective) -> dict[int, Confirmed]:
    """Number of a confirmed trial → what came out. Runs that have not ended, or failed otherwise, are left out."""
    found: dict[int, list[tuple[int, float, float]]] = {}
    for trial in confirmations(trials):
        held = math.nan
        if trial.state == TrialState.COMPLETE and trial.values:
            value, held = trial.values[0], held_out(trial, objective)
        elif has_diverged(trial):
            value = objective.worst
        else:
            continue
        seed = int(trial.user_attrs.get(SEED_ATTR, 0))
        found.setdefault(confirmed_by(trial) or 0, []).append((seed, value, held))
    by_number, lost = {trial.number: trial for trial in trials}, diverged_confirmations(trials)  # tables lack some
    return {
        number: _confirmed_from(by_number[number], sorted(runs, key=lambda run: run[0]), lost[number], objective)
        for number, runs in found.items()
        if number in by_number
    }


def held_out(trial: AnyTrial, objective: Objective) -> float:
    """What the trial's last epoch is worth on the examples that made no choice; not a number without them."""
    records = epoch_records(trial)
    return objective.held_out(records[-1]) if records else math.nan


def _confirmed_from(
    trial: AnyTrial, runs: Sequence[tuple[int, float, float]], diverged: int, objective: Objective
) -> Confirmed:
    on_holdout = any(not math.isnan(run[2]) for run in runs)
    return Confirmed(
        trial=trial.number,
        chosen_at=trial.values[0] if trial.values else math.nan,
        seeds=tuple(run[0] for run in runs),
        values=tuple(run[1] for run in runs),
        # A diverged run has no value on the holdout: it is at chance there too.
        holdout=tuple(objective.worst if math.isnan(run[2]) else run[2] for run in runs) if on_holdout else (),
        diverged=diverged,
    )
