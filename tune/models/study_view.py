"""A study as one sampler or pruner should see it: with other trials, and perhaps without being written to."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Any, cast

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs.study_index import StudyIndex

Shown = Callable[[list[FrozenTrial]], Sequence[FrozenTrial]]
"""From a study's trials to the trials to show. It must not change the given ones: the study caches them."""


MOST_TRIALS = 500
"""A sampler or pruner sees at most this many trials, so that a decision costs the same in a study of 10,000."""


class BestAndRecent(StudyIndex):
    """Of a study of thousands, the trials from which a sampler learns.

    Args:
        maximize: whether a larger value is better.
        frontier: the parameter whose values are compared separately, see ``SearchFacts``.
    """

    def __init__(self, *, maximize: bool, frontier: str | None = None) -> None:
        self._sign, self._frontier = -1 if maximize else 1, frontier or ""
        super().__init__()

    def among(self, trials: Sequence[FrozenTrial], most: int = MOST_TRIALS) -> list[FrozenTrial]:
        """All of ``trials``, if they are at most ``most``; else the more recent half of ``most``, the best finished
        ones before them, and all that still run, in the order of their numbers.

        Call it with the same study's trials, as they become more.
        """
        if len(trials) <= most:
            return list(trials)
        self.take_in(trials)
        cut = len(trials) - most // 2
        # Also old ones that still run: TPE's constant liar keeps new trials away from them.
        chosen = {place for place in self._open if place < cut and trials[place].state == TrialState.RUNNING}
        room = (most - most // 2) // max(1, len(self._finished))
        for finished in self._finished.values():
            chosen.update(islice((place for _, place in finished if place < cut), room))
        return [*(trials[place] for place in sorted(chosen)), *trials[cut:]]

    def _forget(self) -> None:
        self._finished: dict[object, list[tuple[float, int]]] = {}

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        if trial.state == TrialState.COMPLETE and trial.values:
            of_value = self._finished.setdefault(trial.params.get(self._frontier), [])
            insort(of_value, (self._sign * trial.values[0], place))


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
        return [t for t in trials if states is None or t.state in states]


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
