"""Hide from a strategy what it does not decide: confirmations, and the trials of a search's second part.

A configuration that is trained again must not look like several good ones. Cheap runs are shown as finished trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.protocol import Capabilities, Strategy, TrialDecision
from bigbatch.tune.strategies.study_view import view_of
from bigbatch.tune.study.cheap_runs import as_finished
from bigbatch.tune.study.trial_facts import CHEAP_ATTR, CONFIRMS_ATTR, FOLLOWS_ATTR


@dataclass(frozen=True)
class SearchOnly:
    """A strategy that sees its own trials alone. The others are never stopped."""

    inner: Strategy

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
        return SearchOnlySampler(self.inner.sampler(number))

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """As the inner one, for what it sees."""
        if _is_hidden(trial):
            return TrialDecision.GO_ON
        return self.inner.look(_seen(study), trial, epoch)

    def to_continue(self, study: Study) -> FrozenTrial | None:
        """As the inner one, for what it sees."""
        return self.inner.to_continue(_seen(study))

    def is_over(self, study: Study) -> bool:
        """As the inner one, for what it sees."""
        return self.inner.is_over(_seen(study))


class SearchOnlySampler(BaseSampler):
    """A sampler that sees the strategy's own trials alone."""

    def __init__(self, inner: BaseSampler) -> None:
        self._inner = inner

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the inner sampler."""
        self._inner.before_trial(_seen(study), trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As the inner sampler."""
        return self._inner.infer_relative_search_space(_seen(study), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """As the inner sampler."""
        return self._inner.sample_relative(_seen(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """As the inner sampler."""
        return self._inner.sample_independent(_seen(study), trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """As the inner sampler."""
        self._inner.after_trial(_seen(study), trial, state, values)


def _is_hidden(trial: FrozenTrial) -> bool:
    return CONFIRMS_ATTR in trial.user_attrs or FOLLOWS_ATTR in trial.user_attrs


def _shown(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    return [as_finished(trial) for trial in trials if not _is_hidden(trial)]


def _seen(study: Study) -> Study:
    """The study with the strategy's trials; the study itself where it has no others."""
    if any(_is_hidden(t) or CHEAP_ATTR in t.user_attrs for t in study.get_trials(deepcopy=False)):
        return view_of(study, _shown)
    return study
