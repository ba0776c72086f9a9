"""How probably a configuration may be trained: a model of the space's constraints, learned from the study.

Each constraint has a Gaussian process of its own on how far trials were beyond their bound, as in Gelbart et al. 2014
(arXiv 1403.5607, section 3) and Gardner et al. 2014 ("Bayesian optimization with inequality constraints", ICML). The
probability that a configuration meets all of them is the product of the normal probabilities that each one is at most
0. A proposal's probability of improvement is multiplied by it. What probably violates one comes after everything
else, the more so the more of them: Gelbart et al. too ask for a least probability (equation 2). Where the best values
lie at a bound, the probability of improvement may fall faster on this side of it than that of being feasible on the
other.

A space that refuses a configuration says no more than that. So refusals are one more such process, on +1 for what was
refused and −1 for what was not (least-squares classification, Rasmussen and Williams 2006, section 6.5).

What grows with the epochs, such as device hours, is compared as it would be at the end of the run: else each run that
was paused early would seem to keep its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.special import log_ndtr

from bigbatch.tune.models.curve_model import MAX_POINTS, CurveModel, CurvePoints
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.feasible import INFEASIBLE_ATTR, constraints_of, measured
from bigbatch.tune.runs.run import devices_of, epoch_records, planned_epochs, was_refused
from bigbatch.tune.runs.study_index import StudyIndex
from bigbatch.tune.runs.tables import epoch_s

Array = NDArray[np.float64]
FEWEST_POINTS = 3
"""With fewer trials whose distance from a bound is known, nothing is predicted of it."""
GROW = (metrics.GPU_HOURS, "optimizer_steps")
"""Metrics that grow with each epoch."""
LIKELY, LEFT_FOR_LATER = 0.5, 1e4
"""The logarithm of a smaller probability counts as so much smaller again."""
HARDLY = 1e-6
"""No probability is below this. Where every trial was far beyond a bound, the model knows no better direction."""
REFUSAL = ""
"""The name under which the space's own refusals are kept. No constraint has it."""


class Feasibility(StudyIndex):
    """What the trials of a study say about its constraints.

    Attributes:
        refused: the configurations that could not begin. What they had not drawn is drawn at random.
    """

    refused: list[Mapping[str, object]]

    def __init__(self, space: UnitSpace) -> None:
        self._space = space
        super().__init__()

    def log_chance(self, study: Study, at: Array) -> Array:
        """The logarithm of the probability (m,) that configurations meet all constraints, LEFT_FOR_LATER less for each
        one that is not LIKELY to be met.

        Args:
            at: (m, d): their unit coordinates.
        """
        self.update(study)
        found = np.zeros(len(at))
        for points in self._margins.values():
            known = list(points.values())[-MAX_POINTS:]
            if len(known) >= FEWEST_POINTS and any(margin > 0 for _, margin in known):
                chance = np.maximum(_log_chance(known, at), math.log(HARDLY))
                found += chance - LEFT_FOR_LATER * (chance < math.log(LIKELY))
        return found

    def _forget(self) -> None:
        self.refused = []
        self._margins: dict[str, dict[int, tuple[Array, float]]] = {}
        """By constraint, and by the trial's place: its coordinates, and how far it is beyond the bound."""

    def _take(self, place: int, trials: Sequence[FrozenTrial]) -> None:
        trial = trials[place]
        params: Mapping[str, object] = trial.params
        if was_refused(trial):
            # What it had not drawn is not the reason, and an absent coordinate would be taken for it.
            params = self._space.sample(np.random.default_rng(trial.number), params)
            self.refused.append(params)
        if not trial.params:
            return
        at = self._space.encode(params)
        for name, margin in _margins_of(trial).items():
            self._margins.setdefault(name, {})[place] = (at, margin)


def _log_chance(known: Sequence[tuple[Array, float]], at: Array) -> Array:
    """The logarithm of the probability (m,) that the margin is at most 0, given margins at other coordinates."""
    features, margins = np.array([where for where, _ in known]), np.array([margin for _, margin in known])
    # Each point is the end of a run of its own: of the model's parts, this leaves the ends and the noise.
    model = CurveModel.fit(CurvePoints(features, np.ones(len(known)), np.arange(len(known))), margins)
    mean, sd = model.predict(CurvePoints(at, np.ones(len(at)), np.full(len(at), -1)))
    return np.asarray(log_ndtr((model.standardised(0.0) - mean) / sd))


def _margins_of(trial: FrozenTrial) -> dict[str, float]:
    """How far the trial is beyond each constraint, as far as it is known; whether the space has refused it."""
    attrs, found = trial.user_attrs, dict[str, float]()
    violated = attrs.get(INFEASIBLE_ATTR, {})
    if "config" in attrs or was_refused(trial):
        found[REFUSAL] = 1.0 if was_refused(trial) and not violated else -1.0
    if not (constraints := constraints_of(attrs)):
        return found
    records, planned = epoch_records(trial), planned_epochs(trial)
    share = min(1.0, len(records) / planned) if records and planned else 1.0
    hours = devices_of(trial) * sum(map(epoch_s, records)) / 3600
    for one in constraints:
        value = measured(one, records, hours if records else math.nan)
        if one.value is None and one.name in GROW:
            value /= share
        if not math.isnan(value):
            found[one.name] = _compressed(max(one.excess(value), violated.get(one.name, -math.inf)))
    return found


def _compressed(excess: float) -> float:
    """An excess with its sign and the logarithm of its size: what needs ten times the bound does not hide the rest."""
    return math.copysign(math.log1p(abs(excess)), excess)
