"""What a manager asks before it acts on a study that other drivers may share (``tune/storage/drivers.py``). No Ray.

Without a database there are no other drivers, and every answer is the one of a driver that is alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import OWNER_ATTR
from bigbatch.tune.trials.live_trial import StudyKeeper

TAKEN_OVER = "another driver of the study has taken it over, because this one gave no sign of life"


class SharedStudy:
    """The study of ``store``, and the drivers that work on it."""

    def __init__(self, store: StudyKeeper) -> None:
        self._store, self._study, self._drivers = store, store.study, store.drivers
        self._ended = retry.EndedCount()

    @property
    def with_others(self) -> bool:
        """Whether the study has ever had another driver."""
        return self._drivers is not None and self._drivers.with_others

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """The time in which this driver decides, and no other one. Gives False if another driver does not end its turn.

        It begins with the trials of drivers that have died.
        """
        if self._drivers is None:
            yield True
            return
        with self._drivers.lock.turn() as may:
            if may:
                self._drivers.look()
                if self.with_others:
                    self._store.recover()
            yield may

    def begins(self, trial: optuna.trial.Trial) -> None:
        """This driver runs the trial from now on. If another one has trained it, its checkpoint is copied here."""
        if self._drivers is None:
            return
        self._drivers.begins_work()
        # Before the owner is set: until then the trial says whose checkpoint it has.
        before = self._study.get_trials(deepcopy=False) if self.with_others else []
        trial.set_user_attr(OWNER_ATTR, self._drivers.owner)
        if before:
            self._drivers.bring_checkpoint(before, trial.number, self._store.checkpoint_folder(trial.number))

    def holds(self, trial: optuna.trial.Trial) -> bool:
        """Whether this driver still runs a trial that it has begun."""
        if self._drivers is None:
            return True
        frozen = self._study._storage.get_trial(trial._trial_id)
        return self._drivers.is_own(frozen) and frozen.state == TrialState.RUNNING

    def ended(self, counted: int) -> int:
        """How many trials have ended, as ``--trials`` counts. ``counted``: those that this driver has counted."""
        return self._ended.of(self._study) if self.with_others else counted

    def elsewhere(self) -> int:
        """How many trials of the search other drivers run."""
        return self._drivers.runs_elsewhere(self._running()) if self.with_others and self._drivers else 0

    def must_stay(self, live: int) -> bool:
        """Whether a driver with nothing to begin must stay: it may have to take over a trial that runs elsewhere.

        It leaves when it has no live trials itself and all those drivers have given a sign of life since.
        """
        if self._drivers is None or not self.with_others:
            return False
        running = [trial for trial in self._running() if not self._drivers.is_own(trial)]
        return bool(running) and (live > 0 or self._drivers.uncertain(running))

    def _running(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
