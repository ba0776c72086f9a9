"""A study as one sampler or pruner should see it: with other trials, and perhaps without being written to."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, cast

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

Shown = Callable[[list[FrozenTrial]], Sequence[FrozenTrial]]
"""From a study's trials to the trials to show. It must not change the given ones: the study caches them."""


MOST_TRIALS = 500
"""A sampler or pruner sees at most this many trials, the latest ones, so that a decision costs the same in a study of
10,000."""


Notes = list[tuple[int, str, object]]
"""What a pruner wants to note: id of a trial, name of a system attribute, its value."""


class _ShownStorage:
    """The storage of a view. Some samplers and pruners (``BruteForceSampler``, ``HyperbandPruner``) ask it for trials.

    Args:
        notes: what a pruner notes about a trial is taken down here. None: it is written. All else is passed on.
    """

    def __init__(self, storage: Any, view: _StudyView, notes: Notes | None) -> None:
        self._inner, self._view, self._notes = storage, view, notes

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The shown trials in ``states``, or in any."""
        return self._view.get_trials(deepcopy, states)

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        """Take it down, or write it."""
        if self._notes is None:
            self._inner.set_trial_system_attr(trial_id, key, value)
        else:
            self._notes.append((trial_id, key, value))


class _StudyView:
    """A study with other trials; everything else is passed to the study."""

    def __init__(self, study: Study, shown: Shown, notes: Notes | None, stop: Callable[[], None] | None) -> None:
        self._inner, self._shown = study, shown
        self._storage = _ShownStorage(study._storage, self, notes)
        if stop is not None:
            self.stop = stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All shown trials."""
        return self.get_trials()

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        """The shown trials in ``states``, or in any."""
        return self._get_trials(deepcopy=deepcopy, states=states)

    # Optuna's own samplers call this private method.
    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        trials = self._shown(self._inner._get_trials(deepcopy=deepcopy, use_cache=use_cache))
        return list(trials) if states is None else [t for t in trials if t.state in states]


def view_of(
    study: Study,
    shown: Shown,
    *,
    notes: Notes | None = None,
    stop: Callable[[], None] | None = None,
) -> Study:
    """``study`` with the trials that ``shown`` makes of its trials.

    Args:
        notes: what a pruner notes about a trial is added here, instead of being written.
        stop: what ``study.stop()`` does. None: as the study, which refuses it outside of ``optimize``.
    """
    return cast(Study, _StudyView(study, shown, notes, stop))


def whole_study(study: Study) -> Study:
    """The study of which this is a view, or a view of a view."""
    while isinstance(study, _StudyView):
        study = study._inner
    return study
