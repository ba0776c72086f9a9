"""What TPE sees of trials that ended badly or were spared. The study keeps the truth.

**Bad ends.** A diverged trial is FAIL in the study, and so is one that the space refused. TPE ignores failed trials: it
would propose similar ones again and again, most of all where the best values lie at the edge of divergence. Their last
values do not help either, if there are any. So a bad end is shown as what TPE ranks last:

- Of one objective, it ranks pruned trials behind finished ones, those that came further first. A bad end is shown as a
  pruned trial without any value. Only trials that violate a constraint rank behind it. It needs no number, so it is the
  same for every metric, also for a target, and where the value of a diverged run is not known.
- Of several objectives, it needs numbers. A bad end is a finished trial with the worst values that any other one has. A
  worse number would be an outlier, and flatten the model everywhere else.

Before any other trial has a value, bad ends are not shown: among bad ends alone, some would be the best.

**Spared trials.** A trial is not stopped during its warmup or its first steps, whatever the pruner says
(``stopping.py``). So even a bad trial of few steps may run to its end. TPE ranks trials first by their length, then by
value: finished trials before stopped ones, and later stopped before earlier stopped ones (``_split_trials`` of
``optuna.samplers._tpe.sampler``). That is right if a trial had to earn each epoch. A spared trial did not: with few
other finished trials, a spared one with 31 % ranked before stopped ones with 60 %.

So TPE sees a spared trial as stopped in the epoch in which the pruner first wanted to stop it, with its final value. If
it ends among the best third of the finished trials (the pruner's own rule, applied at the end), TPE sees it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.study_view import MOST_TRIALS, view_of
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.run import as_shown, has_diverged, replaced_trials, was_refused

Directions = Sequence[StudyDirection]


def shown_to_tpe(study: Study) -> Study:
    """The study as TPE should see it."""
    directions = study.directions
    maximize = directions[0] == StudyDirection.MAXIMIZE

    def shown(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        return as_pruned_view(with_bad_ends(trials[-MOST_TRIALS:], directions), maximize)

    return view_of(study, shown)


def with_bad_ends(trials: Sequence[FrozenTrial], directions: Directions) -> list[FrozenTrial]:
    """The trials as TPE should see them. The given trials are not changed.

    A trial is left out if another one that continues or repeats it ended badly: its early values would look good.
    """
    wholes = {frozenset(trial.params) for trial in trials if not was_refused(trial)}
    bad = {trial.number for trial in trials if _ended_badly(trial, wholes)}
    beyond = {trial.number for trial in trials if is_infeasible(trial) and trial.state == TrialState.PRUNED}
    sound = [_values_of(t) for t in trials if t.number not in bad and not is_infeasible(t)]
    known = [values for values in sound if values is not None]
    if not known or not (bad or beyond):
        return list(trials)
    again = {first: number for first, number in replaced_trials(trials).items() if number in bad | beyond}
    shown = []
    for trial in trials:
        if trial.number in again:
            continue
        if trial.number in bad and len(directions) == 1:
            trial = _ended(trial, TrialState.PRUNED)
        elif trial.number in bad:
            trial = _ended(trial, TrialState.COMPLETE, _worst(known, directions))
        shown.append(trial)
    return shown


def _ended_badly(trial: FrozenTrial, wholes: Set[frozenset[str]]) -> bool:
    """Whether it diverged, or was refused after all its parameters were drawn: to samplers, a parameter that a trial
    lacks is one that its configuration does not have."""
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


def _ended(trial: FrozenTrial, state: TrialState, values: Sequence[float] | None = None) -> FrozenTrial:
    return as_shown(trial, state=state, values=values, intermediate_values={})


SPARED_ATTR = "spared_in_epoch"
"""User attribute: the first epoch in which the pruner wanted to stop the trial."""
REDUCTION_FACTOR = 3
"""ASHA's η: a third of the trials continues at each rung (Li et al. 2020, arXiv 1810.05934, use 3 or 4)."""


def as_pruned_view(trials: Sequence[FrozenTrial], maximize: bool = True) -> list[FrozenTrial]:
    """The trials as TPE should see them. The given trials are not changed."""
    sign = 1 if maximize else -1
    ends = sorted((sign * t.values[0] for t in trials if t.state == TrialState.COMPLETE), reverse=True)
    bar = ends[max(1, len(ends) // REDUCTION_FACTOR) - 1] if ends else 0.0
    return [_as_stopped(t) if _not_earned(t, bar, sign) else t for t in trials]


def _not_earned(trial: FrozenTrial, bar: float, sign: int) -> bool:
    if SPARED_ATTR not in trial.user_attrs or not trial.intermediate_values:
        return False
    return trial.state == TrialState.PRUNED or (trial.state == TrialState.COMPLETE and sign * trial.values[0] < bar)


def _as_stopped(trial: FrozenTrial) -> FrozenTrial:
    last = trial.intermediate_values[max(trial.intermediate_values)]
    values = {int(trial.user_attrs[SPARED_ATTR]): last}
    return as_shown(trial, state=TrialState.PRUNED, values=None, intermediate_values=values)
