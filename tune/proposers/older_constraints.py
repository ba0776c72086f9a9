"""Constraints for samplers of Optuna before 5.0, as others learn them.

These samplers ask a function when a trial ends, and note its answer at the trial. A trial without a note, such as one
of another study, violates a constraint for TPE and is an error for the Gaussian process. So each trial has one here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.study_view import view_of
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler
from bigbatch.tune.runs.feasible import furthest_excess

NOTE = "constraints"
"""Name of Optuna's system attribute."""


def knowing_constraints(make: Callable[..., BaseSampler], **arguments: Any) -> BaseSampler:
    """A sampler made by ``make`` that learns of constraints with any version of Optuna."""
    if hasattr(optuna.Trial, "set_constraint"):
        return make(**arguments)
    return _NotedSampler(make(constraints_func=furthest_excess, **arguments))


class _NotedSampler(PassingSampler):
    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        return Asked(self._sampler, view_of(study, _with_notes, storage=_NotedStorage(study._storage)), trial)


class _NotedStorage:
    """Answers for trials without a note; everything else is passed to the storage."""

    def __init__(self, storage: Any) -> None:
        self._inner = storage

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def get_trial_system_attrs(self, trial_id: int) -> Mapping[str, object]:
        """Those of a trial; one of another study has no number here, and violates nothing."""
        if trial_id < 0:
            return {NOTE: [0.0]}
        trial = self._inner.get_trial(trial_id)
        return {NOTE: furthest_excess(trial), **trial.system_attrs}


def _with_notes(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial if NOTE in trial.system_attrs else _noted(trial) for trial in trials]


def _noted(trial: FrozenTrial) -> FrozenTrial:
    found = copy.copy(trial)
    found.system_attrs = {**trial.system_attrs, NOTE: furthest_excess(trial)}
    return found
