"""A study as one sampler or pruner should see it: with other trials, and perhaps without being written to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Sequence
from typing import cast

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

Shown = Callable[[list[FrozenTrial]], Sequence[FrozenTrial]]
"""From a study's trials to the trials to show. It must not change the given ones: the study caches them."""


MOST_TRIALS = 500
"""A sampler or pruner sees at most this many trials, so that a decision costs the same in a study of 10,000."""


def best_and_recent(trials: Sequence[FrozenTrial], *, maximize: bool, most: int = MOST_TRIALS) -> list[FrozenTrial]:
    """All trials, if they are at most ``most``; else the more recent half of ``most``, the best finished ones before
    them, and all that still run, in the order of their numbers."""
    if len(trials) <= most:
        return list(trials)
    earlier, recent = trials[: -(most // 2)], trials[-(most // 2) :]
    done = [t for t in earlier if t.state == TrialState.COMPLETE and t.values]
    pick = heapq.nlargest if maximize else heapq.nsmallest
    best = pick(most - len(recent), done, key=lambda t: t.values[0])
    running = [t for t in earlier if t.state == TrialState.RUNNING]
    return [*sorted((*best, *running), key=lambda t: t.number), *recent]


class _ReadOnlyStorage:
    """A storage that forgets what a pruner notes about a trial; everything else is passed to the storage."""

    def __init__(self, storage: object) -> None:
        self._inner = storage

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        """Do nothing."""


class _StudyView:
    """A study with other trials; everything else is passed to the study."""

    def __init__(self, study: Study, shown: Shown, read_only: bool) -> None:
        self._inner, self._shown = study, shown
        if read_only:
            self._storage = _ReadOnlyStorage(study._storage)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All shown trials."""
        return self.get_trials()

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        """The shown trials in ``states``, or in any."""
        return self._get_trials(deepcopy=deepcopy, states=states)

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        trials = self._shown(self._inner._get_trials(deepcopy=deepcopy, use_cache=use_cache))
        return [t for t in trials if states is None or t.state in states]


def view_of(study: Study, shown: Shown, *, read_only: bool = False) -> Study:
    """``study`` with the trials that ``shown`` makes of its trials. A ``read_only`` one keeps no notes of a pruner."""
    return cast(Study, _StudyView(study, shown, read_only))
