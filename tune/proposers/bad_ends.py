"""What Optuna's samplers see of trials that ended badly. The study keeps the truth.

A diverged trial is FAIL in the study, and so is one that the space refused. Optuna's samplers pass over failed trials:
they would propose the same again and again, most of all where the best values lie at the edge of divergence. Their
last values are no help either, or there are none. So each sampler is shown a bad end as what it ranks last:

- TPE ranks pruned trials behind finished ones, those that came further first. A bad end is a pruned trial without any
  value, which is the last of all but those that violate a constraint. It needs no number, so it is the same for
  every metric, also where nobody knows what a diverged run is worth, and for a target.
- The other samplers, and TPE with several objectives, need numbers. A bad end is a finished trial with the worst values
  that any other one has. A worse number would be an outlier, and flatten the model everywhere else.

Before any other trial has a value, bad ends are not shown: among bad ends alone, some would be the best.

A trial that violates a constraint is PRUNED in the study. TPE knows it by its constraints. Optuna's Gaussian process
looks at finished trials alone, so it is shown one: with its constraints, and with the middle of the others' values,
which says nothing about the objective. CMA-ES knows no constraints, and ranks it with the bad ends (a death penalty).
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence, Set

import optuna
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.models.study_view import view_of
from bigbatch.tune.proposers.passing_sampler import ShownSampler
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.run import has_diverged, replaced_trials, was_refused

Directions = Sequence[StudyDirection]


def showing_bad_ends(sampler: BaseSampler, name: str) -> BaseSampler:
    """The sampler of strategy ``name`` (tpe, gp or cmaes), which sees bad ends."""

    def shown(study: Study) -> Study:
        directions = study.directions
        return view_of(study, lambda trials: with_bad_ends(trials, name, directions))

    return ShownSampler(sampler, shown)


def with_bad_ends(trials: Sequence[FrozenTrial], name: str, directions: Directions) -> list[FrozenTrial]:
    """The trials as the sampler of strategy ``name`` should see them. The given trials are not changed.

    A trial that another one continues or repeats is left out if that one ended badly: its early values would speak for
    it.
    """
    wholes = {frozenset(trial.params) for trial in trials if not was_refused(trial)}
    bad = {trial.number for trial in trials if _ended_badly(trial, wholes)}
    beyond = {trial.number for trial in trials if is_infeasible(trial) and trial.state == TrialState.PRUNED}
    if name == "cmaes":
        bad, beyond = bad | beyond, set()
    sound = [_values_of(t) for t in trials if t.number not in bad and not is_infeasible(t)]
    known = [values for values in sound if values is not None]
    if name == "gp":
        known = [list(t.values) for t in trials if t.state == TrialState.COMPLETE and t.values]
    if not known or not (bad or beyond):
        return list(trials)
    again = {first: number for first, number in replaced_trials(trials).items() if number in bad | beyond}
    by_rank_alone = name == "tpe" and len(directions) == 1
    shown = []
    for trial in trials:
        if trial.number in again:
            continue
        if trial.number in bad:
            trial = _stopped(trial) if by_rank_alone else _finished(trial, _worst(known, directions))
        elif trial.number in beyond and name == "gp":
            trial = _finished(trial, [statistics.median(column) for column in zip(*known, strict=True)])
        shown.append(trial)
    return _with_equal_constraints(shown) if name == "gp" else shown


def _ended_badly(trial: FrozenTrial, wholes: Set[frozenset[str]]) -> bool:
    """Whether it diverged, or was refused when all its parameters were drawn: samplers take the parameters that a trial
    lacks for some that its configuration does not have."""
    refused = was_refused(trial) and trial.state == TrialState.FAIL
    return has_diverged(trial) or (refused and frozenset(trial.params) in wholes)


def _values_of(trial: FrozenTrial) -> list[float] | None:
    """The values of a finished trial, the last value of one that was stopped or paused; None if it has none."""
    if trial.state == TrialState.COMPLETE and trial.values:
        return list(trial.values)
    if trial.state != TrialState.PRUNED or not trial.intermediate_values:
        return None
    last = trial.intermediate_values[max(trial.intermediate_values)]
    return [last] if math.isfinite(last) else None


def _worst(known: Sequence[Sequence[float]], directions: Directions) -> list[float]:
    """The worst value of each objective."""
    columns = zip(*known, strict=True)
    return [(min if d == StudyDirection.MAXIMIZE else max)(c) for c, d in zip(columns, directions, strict=True)]


def _stopped(trial: FrozenTrial) -> FrozenTrial:
    shown = copy.copy(trial)  # the study caches the original
    shown.state, shown.values, shown.intermediate_values = TrialState.PRUNED, None, {}
    return shown


def _finished(trial: FrozenTrial, values: Sequence[float]) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.values, shown.intermediate_values = TrialState.COMPLETE, list(values), {}
    return shown


def _with_equal_constraints(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The finished trials with the same constraints each, as Optuna's Gaussian process needs them.

    A run that diverged in its first epoch has shown nothing of its costs, and a space may bound some configurations
    alone. What a trial lacks is in the middle of the others, and kept.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not hasattr(optuna.Trial, "set_constraint"):  # older_constraints.py gives each trial one
        return list(trials)
    known: dict[str, list[float]] = {}
    for trial in done:
        for name, excess in trial.constraints.items():
            known.setdefault(name, []).append(excess)
    usual = {name: min(0.0, statistics.median(found)) for name, found in known.items()}
    return [_bounded(trial, usual) if usual and trial.state == TrialState.COMPLETE else trial for trial in trials]


def _bounded(trial: FrozenTrial, usual: Mapping[str, float]) -> FrozenTrial:
    """The trial with these constraints in this order, and its own values of them."""
    constraints = {**usual, **trial.constraints}
    # Optuna keeps constraints in system attributes, in a form that differs between its versions.
    noted = create_trial(values=trial.values, constraints=constraints).system_attrs
    shown = copy.copy(trial)
    shown.system_attrs = {**{key: one for key, one in trial.system_attrs.items() if key not in noted}, **noted}
    return shown
