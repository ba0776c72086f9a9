"""Wrap a strategy's sampler so that the trials are spent over the frontier's values by shares.py.

The frontier's value of a new trial is chosen first. The sampler then proposes the other parameters, as if that value
had been enqueued with the trial.

Most samplers cannot compare an accuracy at batch 1,024 with one at 128: they would learn that the small batch is good.
So they see each trial without the frontier's parameter, and its rank among the trials of its own value (as a normal
score) in place of its value. They learn what the values share: which optimizer, which multiple of the prior's rate. A
sampler that knows the frontier (``Capabilities.frontier``) sees the study as it is.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.protocol import Proposer, SearchFacts
from bigbatch.tune.models.study_view import BestAndRecent, view_of
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.proposers.trial_allocator import TrialAllocator, own_value
from bigbatch.tune.runs.feasible import is_infeasible

_NORMAL = NormalDist()


def at_frontier(inner: Proposer, facts: SearchFacts, *, sees_all: bool) -> Proposer:
    """Proposes as ``inner`` does, at the frontier's value whose turn it is.

    Args:
        sees_all: whether ``inner`` sees the study as it is (``Capabilities.frontier``).
    """
    maximize, shares = facts.objective.direction == "maximize", TrialAllocator(facts)
    history = None if sees_all else BestAndRecent(maximize=maximize, frontier=facts.frontier)
    return lambda number: FrontierSampler(facts, inner(number), shares, history)


class FrontierSampler(PassingSampler):
    """Samples one trial.

    Args:
        shares: chooses the frontier's value; the samplers of one search share it.
        history: chooses the trials that ``inner`` sees. None: it sees the study as it is.
    """

    def __init__(
        self, facts: SearchFacts, inner: BaseSampler, shares: TrialAllocator, history: BestAndRecent | None = None
    ) -> None:
        self._facts, self._inner, self._shares, self._history = facts, inner, shares, history
        self._value: object = None
        self._ranked: list[FrozenTrial] | None = None
        self._ranked_of = -1

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The inner sampler, with what it sees, and the trial as if it had been enqueued with the frontier's value."""
        return Asked(self._inner, self._seen(study), self._pinned(study, trial))

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """As the inner sampler. Nothing is chosen yet."""
        self._inner.before_trial(study, trial)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """The chosen value of the frontier's parameter; any other parameter as the inner sampler."""
        if param_name != self._facts.frontier:
            return super().sample_independent(study, trial, param_name, param_distribution)
        self._pinned(study, trial)
        return self._value

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """As the inner sampler. Nothing is chosen any more."""
        self._inner.after_trial(study, trial, state, values)

    def _pinned(self, study: Study, trial: FrozenTrial) -> FrozenTrial:
        if self._value is None:
            chosen = own_value(self._facts, trial)
            self._value = self._shares.next_value(study, trial.number) if chosen is None else chosen
        # A copy, as the study caches the original.
        shown, attrs = copy.copy(trial), dict[str, Any](trial.system_attrs)
        # Optuna takes a value from here without asking the sampler for it.
        attrs["fixed_params"] = {**attrs.get("fixed_params", {}), self._facts.frontier: self._value}
        shown.system_attrs = attrs
        return shown

    def _seen(self, study: Study) -> Study:
        return study if self._history is None else view_of(study, partial(self._rank, self._history))

    def _rank(self, history: BestAndRecent, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        if self._ranked is None or self._ranked_of != len(trials):  # the same for the whole proposal
            self._ranked, self._ranked_of = among_peers(self._facts, history.among(trials)), len(trials)
        return self._ranked


def among_peers(facts: SearchFacts, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials without the frontier's parameter, each value replaced by its normal score among its peers.

    A trial's last value is ranked among the values that its peers had in the same epoch. The best of a value thus
    compares with the best of any other; a trial without peers is in the middle. One that violates a constraint has no
    rank, and is shown without values. The given trials are not changed.
    """
    at_step: dict[tuple[object, int | None, int], list[float]] = {}
    for trial in trials:
        if is_infeasible(trial):
            continue
        value = trial.params.get(facts.frontier) if facts.frontier else None
        for place, final in enumerate(trial.values or () if trial.state == TrialState.COMPLETE else ()):
            at_step.setdefault((value, None, place), []).append(final)
        for step, reported in trial.intermediate_values.items():
            at_step.setdefault((value, step, 0), []).append(reported)
    for met in at_step.values():
        met.sort()
    return [_as_ranked(facts, trial, at_step) for trial in trials]


def _as_ranked(
    facts: SearchFacts, trial: FrozenTrial, at_step: dict[tuple[object, int | None, int], list[float]]
) -> FrozenTrial:
    name = facts.frontier or ""
    if name not in trial.params:
        return trial
    value, shown = trial.params[name], copy.copy(trial)
    shown.params = {other: one for other, one in trial.params.items() if other != name}
    shown.distributions = {other: one for other, one in trial.distributions.items() if other != name}
    if is_infeasible(trial):
        shown.intermediate_values = {}
    elif trial.intermediate_values:
        last = max(trial.intermediate_values)
        shown.intermediate_values = {last: _score(trial.intermediate_values[last], at_step[value, last, 0])}
    if trial.state == TrialState.COMPLETE and trial.values:
        shown.values = [_score(final, at_step[value, None, place]) for place, final in enumerate(trial.values)]
    return shown


def _score(value: float, sorted_values: Sequence[float]) -> float:
    """The normal score of a value's rank: 0 in the middle, larger for larger values."""
    middle = (bisect_left(sorted_values, value) + bisect_right(sorted_values, value)) / 2
    return _NORMAL.inv_cdf(middle / len(sorted_values))
