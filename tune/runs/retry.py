"""``--retry-failed``: repeat a failed trial as a new trial that names the failed one.

Optuna does not change a trial that has ended, and the failure is a fact of the study. So the failed trial stays as a
record. Its retry has the same parameters, continues from its last checkpoint, and is counted in its place. See
docs/decisions/003.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs.run import (
    CONFIRMS_ATTR,
    RETRIES_ATTR,
    SEED_ATTR,
    has_diverged,
    is_paused,
    replaced_trials,
    retried_trials,
    trials_of_run,
)


class LedgerOfTrials(Protocol):
    """What this file needs of a ``Ledger``."""

    def trial_s(self, number: int) -> float:
        """Device seconds of a trial."""


class StudyWithCheckpoints(Protocol):
    """What this file needs of a ``StudyStore``, which itself asks ``may_need_checkpoint``."""

    study: optuna.Study

    def checkpoint_folder(self, number: int) -> Path:
        """Of the trial with that number, whether it exists or not."""


def run_hours(ledger: LedgerOfTrials, run: Sequence[FrozenTrial]) -> float:
    """Device hours of a run, over all its trials and their attempts. ``run``: as ``trials_of_run``."""
    return sum(ledger.trial_s(trial.number) for trial in run) / 3600


def hours_of_run(study: optuna.Study, ledger: LedgerOfTrials, number: int) -> float:
    """Device hours of the whole run to which the trial with this number belongs."""
    return run_hours(ledger, trials_of_run(study.get_trials(deepcopy=False), number))


def trials_to_retry(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Failed trials that had a valid configuration and have no retry yet."""
    again = retried_trials(trials)
    return [t for t in trials if t.state == TrialState.FAIL and "config" in t.user_attrs and t.number not in again]


def retry_failed(store: StudyWithCheckpoints, only: Collection[int] | None = None) -> dict[int, int]:
    """Enqueue a retry of each failed trial. Returns number of the failed trial → number of its waiting retry.

    ``only``: the numbers of those to retry; None: all.
    """
    for trial in trials_to_retry(store.study.get_trials(deepcopy=False)):
        if only is not None and trial.number not in only:
            continue
        kept = {key: value for key, value in trial.user_attrs.items() if key in (CONFIRMS_ATTR, SEED_ATTR)}
        store.study.enqueue_trial(trial.params, user_attrs={RETRIES_ATTR: trial.number, **kept})
    adopt_checkpoints(store)
    trials = store.study.get_trials(deepcopy=False)
    return {failed: n for failed, n in retried_trials(trials).items() if trials[n].state == TrialState.WAITING}


def adopt_checkpoints(store: StudyWithCheckpoints) -> None:
    """Hand the checkpoints of failed and paused trials to the trials that stand for them now.

    This also completes what a kill interrupted.
    """
    for earlier, number in replaced_trials(store.study.get_trials(deepcopy=False)).items():
        hand_over(store, earlier, number)


def hand_over(store: StudyWithCheckpoints, earlier: int, number: int) -> None:
    """Hand the checkpoint of a trial to the one that stands for it now."""
    old, new = store.checkpoint_folder(earlier), store.checkpoint_folder(number)
    if old.exists() and not new.exists():
        old.rename(new)


def may_need_checkpoint(trial: FrozenTrial) -> bool:
    """Whether a retry or a continuation of an ended trial would begin from its checkpoint."""
    failed = trial.state == TrialState.FAIL and not has_diverged(trial)  # from there it would only diverge again
    return failed or is_paused(trial)
