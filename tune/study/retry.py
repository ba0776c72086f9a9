"""``--retry-failed``: repeat a failed trial as a new trial that names the failed one.

Optuna does not change a trial that has ended, and the failure is a fact of the study. So the failed trial stays as a
record. Its retry has the same parameters, continues from its last checkpoint, and is counted in its place. See
docs/decisions/003.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.cluster.host import json_values
from bigbatch.tune.study.study_index import StudyIndex
from bigbatch.tune.study.tables import EPOCH_ATTR, epoch_of
from bigbatch.tune.study.trial_facts import (
    CONFIRMS_ATTR,
    CONTINUES_ATTR,
    FOLLOWS_ATTR,
    GIVEN_ATTR,
    SEED_ATTR,
    continued_trials,
    has_diverged,
    is_paused,
    was_refused,
)

RETRIES_ATTR = "retries"
"""User attribute of a retry: the number of the failed trial."""


class LedgerOfTrials(Protocol):
    """What this file needs of a ``Ledger``."""

    def trial_s(self, number: int) -> float:
        """Device seconds of a trial."""


class StudyWithCheckpoints(Protocol):
    """What this file needs of a ``StudyStore``, which itself asks ``may_need_checkpoint``."""

    study: optuna.Study

    def checkpoint_folder(self, number: int) -> Path:
        """Of the trial with that number, whether it exists or not."""


def retried_trials(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Number of a failed trial → number of its retry."""
    return {int(t.user_attrs[RETRIES_ATTR]): t.number for t in trials if RETRIES_ATTR in t.user_attrs}


def replaced_trials(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Number of a failed or paused trial → number of the trial that stands for it now."""
    return {**retried_trials(trials), **continued_trials(trials)}


def given_trials(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Number of each trial that trains a configuration that was given, e.g. a published recipe → number of the trial
    with which that configuration began. Continuations and retries of such trials train it too."""
    found: dict[int, int] = {}
    for trial in trials:
        note_given(trial, found)
    return found


def note_given(trial: FrozenTrial, found: dict[int, int]) -> None:
    """Add the trial to ``found`` (as ``given_trials``, with the earlier trials) if its configuration was given."""
    earlier = _earlier(trial)
    if earlier is not None and earlier in found:
        found[trial.number] = found[earlier]
    elif GIVEN_ATTR in trial.user_attrs:
        found[trial.number] = trial.number


def trials_of_run(trials: Sequence[FrozenTrial], number: int) -> list[FrozenTrial]:
    """The trial with this number, the one that it repeats or continues, the one before that, and so on. Together they
    are one run: what it costs is the sum over them.

    Args:
        trials: all trials of the study.
    """
    found = [trials[number]]
    while (earlier := _earlier(found[-1])) is not None and earlier < found[-1].number:
        found.append(trials[earlier])
    return found


def _earlier(trial: FrozenTrial) -> int | None:
    attrs = trial.user_attrs
    earlier = json_values.whole_number_or_none(attrs, CONTINUES_ATTR)
    return json_values.whole_number_or_none(attrs, RETRIES_ATTR) if earlier is None else earlier


def run_hours(ledger: LedgerOfTrials, run: Sequence[FrozenTrial]) -> float:
    """Device hours of a run, over all its trials and their attempts. ``run``: as ``trials_of_run``."""
    return sum(ledger.trial_s(trial.number) for trial in run) / 3600


def hours_of_run(study: optuna.Study, ledger: LedgerOfTrials, number: int) -> float:
    """Device hours of the run that the trial with this number is, or goes on with."""
    return run_hours(ledger, trials_of_run(study.get_trials(deepcopy=False), number))


def was_reported(earlier: Sequence[FrozenTrial], record: Mapping[str, object]) -> bool:
    """Whether one of these trials has reported this very epoch. A run that goes on sends its past again."""
    same = ("epoch", "train_s", "val_s", "gpu_energy_j")
    key = f"{EPOCH_ATTR}{epoch_of(record):05d}"
    known = (trial.user_attrs.get(key) for trial in earlier)
    return any(all(one.get(name) == record.get(name) for name in same) for one in known if isinstance(one, Mapping))


def count_ended(trials: Sequence[FrozenTrial]) -> int:
    """The number of trials that have ended, as ``--trials`` counts.

    Failed trials that have a retry do not count, nor do paused trials that were continued, those that were refused
    before they began, and confirmations.
    """
    again = replaced_trials(trials)
    return sum(t.number not in again and _counts(t) for t in trials)


def _counts(trial: FrozenTrial) -> bool:
    return trial.state.is_finished() and CONFIRMS_ATTR not in trial.user_attrs and not was_refused(trial)


def trials_to_retry(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Failed trials that had a valid configuration and have no retry yet."""
    again = retried_trials(trials)
    return [t for t in trials if t.state == TrialState.FAIL and "config" in t.user_attrs and t.number not in again]


def retry_failed(store: StudyWithCheckpoints) -> dict[int, int]:
    """Enqueue a retry of each failed trial. Returns number of the failed trial → number of its waiting retry."""
    for trial in trials_to_retry(store.study.get_trials(deepcopy=False)):
        kept = {
            key: value for key, value in trial.user_attrs.items() if key in (CONFIRMS_ATTR, SEED_ATTR, FOLLOWS_ATTR)
        }
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


class EndedCount(StudyIndex):
    """``count_ended`` of a study that grows."""

    def of(self, study: optuna.Study) -> int:
        """The number of trials that have ended, as ``--trials`` counts."""
        self.update(study)
        return len(self._counted)

    def _forget(self) -> None:
        self._counted: set[int] = set()
        self._replaced: set[int] = set()

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        for name in (RETRIES_ATTR, CONTINUES_ATTR):
            if name in trial.user_attrs:
                self._replaced.add(int(trial.user_attrs[name]))
                self._counted.discard(int(trial.user_attrs[name]))
        if trial.number not in self._replaced and _counts(trial):
            self._counted.add(trial.number)


def may_need_checkpoint(trial: FrozenTrial) -> bool:
    """Whether a retry or a continuation of an ended trial would begin from its checkpoint."""
    failed = trial.state == TrialState.FAIL and not has_diverged(trial)  # from there it would only diverge again
    return failed or is_paused(trial)


def before_equal_ones(trial: FrozenTrial, given: Mapping[int, int]) -> tuple[bool, int]:
    """Of trials that are equally good, the one for which this is smallest comes first: a configuration that was given,
    as published recipes are, because it has proved itself elsewhere too; then the earliest one.

    Args:
        given: as ``given_trials``.
    """
    return trial.number not in given, given.get(trial.number, trial.number)
