"""Facts of a study that are asked for at every event, without looking at all its trials each time.

Optuna never changes a trial that has ended. So an index looks once at each ended trial, and again only at those that
had not ended when it last looked. It is a cache: an index that is made anew from the study says the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class StudyIndex(ABC):
    """The base of such indexes. A subclass says what it forgets and what it takes from a trial.

    Trials are named by their place in the study's list. In the study itself this is their number. In a view that hides
    some it is not, but it stays the same too: a hidden trial is hidden from its first moment on (passing_sampler.py).
    """

    _seen: int
    _open: dict[int, FrozenTrial]
    """The trials that had not ended, by place."""

    def __init__(self) -> None:
        self._storage: BaseStorage | None = None
        self._study_id = -1
        self._begin_again()

    def update(self, study: Study) -> list[FrozenTrial]:
        """Take in what has changed since the last call. Returns all trials. Another study begins anew."""
        if study._storage is not self._storage or study._study_id != self._study_id:
            self._begin_again()
            self._storage, self._study_id = study._storage, study._study_id
        # Optuna would else copy every trial at each look.
        trials = study.get_trials(deepcopy=False)
        self.take_in(trials)
        return trials

    def take_in(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in what has changed in ``trials``, which are those of the last call and perhaps more."""
        # A study only grows: this is another one.
        if len(trials) < self._seen:
            self._begin_again()
        open_before = self._open
        self._open = {}
        for place in (*open_before, *range(self._seen, len(trials))):
            trial = trials[place]
            if not trial.state.is_finished():
                self._open[place] = trial
            if trial is not open_before.get(place):  # Optuna replaces a trial that changes
                self._take(place, trials)
        self._seen = len(trials)

    @property
    def running(self) -> list[FrozenTrial]:
        """The trials that ran at the last call."""
        return [trial for trial in self._open.values() if trial.state == TrialState.RUNNING]

    def _begin_again(self) -> None:
        self._seen, self._open = 0, {}
        self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Be as without any trial."""

    @abstractmethod
    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        """Take in ``trials[place]``, which is new or has changed. It may be taken again until it has ended."""
