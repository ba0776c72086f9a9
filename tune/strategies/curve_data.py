"""The learning curves of a study as a model of curves needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.curve_model import CurveModel, CurvePoints, Scale, thinned
from bigbatch.tune.strategies.protocol import SearchFacts
from bigbatch.tune.strategies.unit_space import UnitSpace
from bigbatch.tune.study import retry
from bigbatch.tune.study.trial_facts import CONTINUES_ATTR, has_diverged, planned_epochs

MARKS = np.array([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
"""The model takes a curve's values at these fractions of the run, and its last one."""
FEWEST_CURVES = 3
"""The model needs this many curves."""


@dataclass
class Curve:
    """What is known of one configuration: of a trial, its continuation and its retries together."""

    number: int
    """Of its first trial."""
    params: Mapping[str, object]
    gains: dict[int, float]
    """Epoch → value, with the sign that makes larger better."""
    epochs: int
    """Of its whole run."""
    diverged: bool = False

    @property
    def best(self) -> float:
        """The best value so far; −inf without one."""
        return max(self.gains.values(), default=-math.inf)


def first_numbers(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Number of each trial → number of the trial that it continues or retries, in the end; else its own."""
    first: dict[int, int] = {}
    for trial in trials:
        earlier = trial.user_attrs.get(CONTINUES_ATTR, trial.user_attrs.get(retry.RETRIES_ATTR))
        first[trial.number] = trial.number if earlier is None else first.get(int(earlier), int(earlier))
    return first


def curves_of(trials: Sequence[FrozenTrial], facts: SearchFacts) -> list[Curve]:
    """The curves of configurations that have a value or have diverged. A trial that failed otherwise says nothing."""
    first, found = first_numbers(trials), dict[int, Curve]()
    for trial in trials:
        diverged = has_diverged(trial)
        if trial.state == TrialState.FAIL and not diverged:
            continue
        if not diverged and not trial.intermediate_values:
            continue
        number = first[trial.number]
        curve = found.setdefault(number, Curve(number, trial.params, {}, planned_epochs(trial) or facts.max_epochs))
        curve.diverged |= diverged
        gain = facts.objective.gain
        curve.gains.update((e, gain(v)) for e, v in trial.intermediate_values.items() if math.isfinite(v))
    return [curve for curve in found.values() if curve.gains or curve.diverged]


class CurveEncoder:
    """The model's view of curves. It keeps coordinates of configurations, which changes no answer."""

    def __init__(self, facts: SearchFacts) -> None:
        self.space, self.facts = UnitSpace(facts.dimensions), facts
        self._features: dict[int, NDArray[np.float64]] = {}
        self._marks: dict[int, list[int]] = {}

    def features(self, curve: Curve) -> NDArray[np.float64]:
        """The coordinates of a curve's configuration."""
        if curve.number not in self._features:
            self._features[curve.number] = self.space.encode(curve.params)
        return self._features[curve.number]

    def learn(self, curves: Sequence[Curve]) -> Learned | None:
        """The model of these curves; None if there are too few."""
        whole = [c for c in curves if c.gains]
        if len(whole) < FEWEST_CURVES:
            return None
        worst = self._worst(whole)
        owner, fraction, gains, row = [], list[float](), list[float](), list[int]()
        for i, curve in enumerate(curves):
            for epoch, gain in self._points(curve, worst):
                owner.append(curve.number)
                fraction.append(min(1.0, epoch / curve.epochs))
                gains.append(gain)
                row.append(i)
        features = np.array([self.features(c) for c in curves])
        points = CurvePoints(features[row], np.array(fraction), np.array(owner))
        scale = Scale.of(np.array(gains), worst)
        warped = scale.warp(np.array(gains))
        kept = thinned(points, warped)
        return Learned(CurveModel.fit(points.take(kept), warped[kept]), scale, tuple(curves), features)

    def _worst(self, curves: Sequence[Curve]) -> float:
        """What a diverged run is worth, on the model's side of the worst value that was seen."""
        worst, seen = self.facts.objective.gain(self.facts.objective.worst), min(min(c.gains.values()) for c in curves)
        return worst if math.isfinite(worst) else seen

    def _points(self, curve: Curve, worst: float) -> list[tuple[int, float]]:
        """Epochs and gains to learn from. A diverged curve is one point, at its end."""
        if curve.diverged:
            return [(curve.epochs, worst)]
        last = max(curve.gains)
        if curve.epochs not in self._marks:
            wanted = np.unique(np.maximum(1, np.ceil(MARKS * curve.epochs - 1e-9).astype(int)))
            self._marks[curve.epochs] = wanted.tolist()
        epochs = [e for e in self._marks[curve.epochs] if e < last and e in curve.gains]
        return [(epoch, curve.gains[epoch]) for epoch in (*epochs, last)]


@dataclass(frozen=True)
class Learned:
    """A model of curves, and the curves it learned from."""

    model: CurveModel
    scale: Scale
    curves: tuple[Curve, ...]
    features: NDArray[np.float64]
    """(curves, d)."""

    def ends(self) -> NDArray[np.float64]:
        """The predicted value of each curve at the end of its run, in standardised warped values."""
        numbers = np.array([c.number for c in self.curves])
        return self.model.predict(CurvePoints(self.features, np.ones(len(numbers)), numbers))[0]

    def standardised(self, gain: float) -> float:
        """A gain in the units of ``ends``."""
        return float(self.model.standardised(self.scale.warp(gain)))
