"""Optuna's storage in a journal, which lists the trials of a study of thousands in no time.

Optuna walks through all trials whenever it lists some. A driver lists them at each event, most often those that wait or
run, which are few.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study.patient_journal import Disk, PatientJournal

_ENDED = tuple(state for state in TrialState if state.is_finished())


def open_journal(path: Path, disk: Disk) -> QuickJournal:
    """The journal at ``path``, new or not. Raises ConfigError if a line of it cannot be read: nothing may follow it."""
    try:
        return QuickJournal(PatientJournal(path, disk))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"a study's optuna.journal must be readable; got {str(path)!r}, which is damaged "
            f"({' '.join(str(error).split())[:120]}). Restore it from a copy. The tables beside it hold what has ended."
        ) from None


class QuickJournal(JournalStorage):
    """A ``JournalStorage`` whose lists of trials cost little.

    Attributes:
        visited: how many trials were looked at one by one, in Python.
    """

    def __init__(self, backend: BaseJournalBackend) -> None:
        self._listed: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self.visited = 0
        super().__init__(backend)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As Optuna's method. Raises KeyError if there is no such study."""
        with self._thread_lock:
            self._sync_with_backend()
            result = self._replay_result
            if states is None and len(result._studies) == 1 == len(result._study_id_to_trial_ids):
                result.get_study(study_id)
                found = list(result._trials.values())  # the only study's, in the order of their numbers
            elif states is not None and not any(state in states for state in _ENDED):
                found = [trial for trial in self._not_ended(study_id) if trial.state in states]
            else:
                found = result.get_all_trials(study_id, states)
            return copy.deepcopy(found) if deepcopy else found

    def _not_ended(self, study_id: int) -> list[FrozenTrial]:
        """The trials of a study that have not ended. One that has ended stays so."""
        result = self._replay_result
        result.get_study(study_id)
        ids = result._study_id_to_trial_ids[study_id]
        asked = [*self._open.get(study_id, ()), *ids[self._listed.get(study_id, 0) :]]
        self.visited += len(asked)
        found = [trial for trial in (result._trials[one] for one in asked) if not trial.state.is_finished()]
        self._open[study_id], self._listed[study_id] = [trial._trial_id for trial in found], len(ids)
        return found
