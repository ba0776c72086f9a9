"""How TPE sees trials that the pruner wanted to stop but that were spared.

A trial is not stopped during its warmup or its first steps, whatever the pruner says (``stopping.py``). So even a bad
trial of few steps may run to its end. TPE ranks trials first by their length, then by value: finished trials before
stopped ones, and later stopped before earlier stopped ones (``_split_trials`` of ``optuna.samplers._tpe.sampler``).
That is right if a trial had to earn each epoch. A spared trial did not: with few other finished trials, one of 31 %
ranked before stopped ones of 60 %.

So TPE sees a spared trial as stopped in the epoch in which the pruner first wanted to stop it, with its final value. If
it ends among the best third of the finished trials (the pruner's own rule, applied at the end), TPE sees it as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.study_view import view_of

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
    shown = copy.copy(trial)  # the study caches the original
    last = trial.intermediate_values[max(trial.intermediate_values)]
    shown.state = TrialState.PRUNED
    shown.values = None
    shown.intermediate_values = {int(trial.user_attrs[SPARED_ATTR]): last}
    return shown


class PrunedViewTPESampler(TPESampler):
    """Optuna's TPE on the judged trials. Its state depends only on the study.

    Args:
        startup: draws the first trials. Optuna's TPE would draw them uniformly at random.
        options: those of ``TPESampler``.
    """

    def __init__(self, startup: BaseSampler, **options: Any) -> None:
        super().__init__(**options)
        self._random_sampler = startup  # type: ignore[assignment]  # TPE calls only methods of BaseSampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As Optuna's method, on the judged trials."""
        return super().infer_relative_search_space(self._judged(study), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """As Optuna's method, on the judged trials."""
        return super().sample_relative(self._judged(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """As Optuna's method, on the judged trials."""
        return super().sample_independent(self._judged(study), trial, param_name, param_distribution)

    def _judged(self, study: Study) -> Study:
        """The study with its trials judged."""
        maximize = study.directions[0] == StudyDirection.MAXIMIZE
        return view_of(study, lambda trials: as_pruned_view(trials, maximize))
