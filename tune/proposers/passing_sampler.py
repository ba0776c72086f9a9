"""A sampler that lets another one sample: perhaps one for each trial, or one that is shown another study."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.study_view import view_of, whole_study
from bigbatch.tune.runs.run import Kind, kind_of
from bigbatch.tune.runs.study_index import StudyIndex


class Asked(NamedTuple):
    """Which sampler is asked, and with what."""

    sampler: BaseSampler
    study: Study
    trial: FrozenTrial


class PassingSampler(BaseSampler):
    """Passes every question on. A subclass says to whom, and may answer some of them itself."""

    @abstractmethod
    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """Who answers the questions about ``trial``."""

    def around(self) -> AbstractContextManager[object]:
        """The context in which the other sampler is asked."""
        return nullcontext()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the other sampler."""
        asked = self.asked(study, trial)
        with self.around():
            asked.sampler.before_trial(asked.study, asked.trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As the other sampler."""
        asked = self.asked(study, trial)
        with self.around():
            return asked.sampler.infer_relative_search_space(asked.study, asked.trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """As the other sampler."""
        asked = self.asked(study, trial)
        with self.around():
            return asked.sampler.sample_relative(asked.study, asked.trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """As the other sampler."""
        asked = self.asked(study, trial)
        with self.around():
            return asked.sampler.sample_independent(asked.study, asked.trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """As the other sampler."""
        asked = self.asked(study, trial)
        with self.around():
            asked.sampler.after_trial(asked.study, asked.trial, state, values)


class ShownSampler(PassingSampler):
    """A sampler that is shown another study, e.g. a view of the study."""

    def __init__(self, sampler: BaseSampler, shown: Callable[[Study], Study]) -> None:
        self._sampler, self._shown = sampler, shown

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The sampler, with what it is shown."""
        return Asked(self._sampler, self._shown(study), trial)


class OwnTrials(StudyIndex):
    """Shows a strategy only its own trials of a study."""

    _view: Study | None = None

    def seen(self, study: Study) -> Study:
        """What a strategy sees of ``study``: each time the same view, because to another one a ``StudyIndex`` would
        begin anew."""
        if self._view is None or whole_study(self._view) is not study:
            self._begin_again()
            self._view = view_of(study, self._shown)
        return self._view

    def hides(self, trial: FrozenTrial) -> bool:
        """Whether a strategy does not see it: a confirmation, which no strategy decides."""
        return kind_of(trial) == Kind.CONFIRMATION

    def _shown(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """The trials without the hidden ones. ``trials``: those of the last call, or more."""
        self.take_in(trials)
        found = list(trials)
        # From the end: the places before it stay the same.
        for place in reversed(self._hidden):
            del found[place]
        return found

    def _forget(self) -> None:
        self._hidden: list[int] = []

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        if self.hides(trials[place]) and place not in self._hidden:
            self._hidden.append(place)
