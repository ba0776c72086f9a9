"""Hide confirmations from a strategy: it does not decide them.

A configuration that is trained again must not look like several good ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.protocol import Capabilities, Fits, Lasts, Strategy, TrialDecision
from bigbatch.tune.models.study_view import view_of
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.runs.run import Kind, kind_of
from bigbatch.tune.runs.study_index import StudyIndex


class OwnTrials(StudyIndex):
    """Shows a strategy its own trials of a study; the study itself where it has no others."""

    def seen(self, study: Study) -> Study:
        """What a strategy sees of ``study``."""
        self.update(study)
        return view_of(study, self._shown) if self._hidden else study

    def _shown(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Of the trials for which ``seen`` was asked, or later ones."""
        self.take_in(trials)
        found = list(trials)
        # From the end: the places before it stay the same.
        for place in reversed(self._hidden):
            del found[place]
        return found

    def _forget(self) -> None:
        self._hidden: list[int] = []

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        if kind_of(trials[place]) == Kind.CONFIRMATION and place not in self._hidden:
            self._hidden.append(place)


@dataclass(frozen=True)
class SearchOnly:
    """A strategy that sees its own trials alone. The others are never stopped."""

    inner: Strategy
    _own: OwnTrials = field(default_factory=OwnTrials, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """That of the inner one."""
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner one."""
        return self.inner.capabilities

    def sampler(self, number: int) -> BaseSampler:
        """A new sampler for trial ``number``."""
        return SearchOnlySampler(self.inner.sampler(number), self._own.seen)

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """As the inner one, for what it sees."""
        if kind_of(trial) == Kind.CONFIRMATION:
            return TrialDecision.GO_ON
        return self.inner.look(self._own.seen(study), trial, epoch)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """As the inner one, for what it sees."""
        return self.inner.to_continue(self._own.seen(study), fits, lasts)

    def is_over(self, study: Study) -> bool:
        """As the inner one, for what it sees."""
        return self.inner.is_over(self._own.seen(study))


class SearchOnlySampler(PassingSampler):
    """A sampler that sees the strategy's own trials alone."""

    def __init__(self, inner: BaseSampler, seen: Callable[[Study], Study]) -> None:
        self._inner, self._seen = inner, seen

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The inner sampler, with what it sees."""
        return Asked(self._inner, self._seen(study), trial)
