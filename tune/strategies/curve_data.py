"""The learning curves of a study as a model of curves needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.strategies.curve_model import MAX_POINTS, CurveModel, CurvePoints, Scale, thinned
from bigbatch.tune.strategies.known_curves import KnownCurves, known_curves
from bigbatch.tune.strategies.known_prediction import known_prediction, rank_correlation
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
        self._known: dict[tuple[int, ...], KnownCurves | None] = {}
        self._predicted: dict[tuple[int, int], float] = {}
        self._features: dict[int, NDArray[np.float64]] = {}
        self._marks: dict[int, list[int]] = {}

    def features(self, curve: Curve) -> NDArray[np.float64]:
        """The coordinates of a curve's configuration."""
        if curve.number not in self._features:
            self._features[curve.number] = self.space.encode(curve.params)
        return self._features[curve.number]

    def learn(self, curves: Sequence[Curve], *, alone: bool = False) -> Learned | None:
        """The model of these curves and, unless ``alone``, of what other studies say; None if there are too few."""
        whole = [c for c in curves if c.gains]
        known = None if alone else self._trusted(curves)
        if len(whole) < FEWEST_CURVES and known is None:
            return None
        worst = self._worst(whole)
        owner, fraction, gains, row = [], list[float](), list[float](), list[int]()
        for i, curve in enumerate(curves):
            for epoch, gain in self._points(curve, worst):
                owner.append(curve.number)
                fraction.append(min(1.0, epoch / curve.epochs))
                gains.append(gain)
                row.append(i)
        features = np.array([self.features(c) for c in curves]).reshape(len(curves), self.space.width)
        points = CurvePoints(features[np.array(row, int)], np.array(fraction), np.array(owner, int))
        scale = Scale.of(np.array(gains or [worst]), worst)
        warped = scale.warp(np.array(gains))
        kept = thinned(points, warped, MAX_POINTS - (len(known.points) if known else 0))
        points, warped = points.take(kept), warped[kept]
        if known is not None:
            points, warped = known.beside(points, warped)
        best = known.best if known else ()
        return Learned(CurveModel.fit(points, warped), scale, tuple(curves), features, best)

    def _trusted(self, curves: Sequence[Curve]) -> KnownCurves | None:
        """The other studies, without those that rank this one's curves no better than by chance; None if none is left.

        The model alone would unlearn them too, but only after more trials.
        """
        kept = tuple(i for i in range(len(self.facts.knowledge)) if self._agrees(i, curves))
        if kept not in self._known:
            studies = [self.facts.knowledge[i] for i in kept]
            self._known[kept] = known_curves(self.facts, self.space, studies)
        return self._known[kept]

    def _agrees(self, place: int, curves: Sequence[Curve]) -> bool:
        """Whether the rank correlation of a study's prediction with these curves is positive, or not known yet."""
        new = [c for c in curves if (place, c.number) not in self._predicted]
        if new:
            predicted = known_prediction(self.facts.knowledge[place], self.facts, [c.params for c in new])
            self._predicted.update({(place, c.number): float(p) for c, p in zip(new, predicted, strict=True)})
        ends = [-math.inf if c.diverged else c.gains[max(c.gains)] for c in curves]
        # Curves of the same length compare; one that has diverged compares with those that have ended.
        groups = [(c.params.get(self.facts.frontier or ""), c.epochs if c.diverged else max(c.gains)) for c in curves]
        found = rank_correlation([self._predicted[place, c.number] for c in curves], ends, groups)
        return found is None or found > 0

    def _worst(self, curves: Sequence[Curve]) -> float:
        """What a diverged run is worth, on the model's side of the worst value that was seen."""
        worst = self.facts.objective.gain(self.facts.objective.worst)
        seen = min((min(c.gains.values()) for c in curves), default=0.0)
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
    known_best: tuple[Mapping[str, object], ...] = ()
    """The best configurations of other studies, as far as these are believed."""

    def ends(self) -> NDArray[np.float64]:
        """The predicted value of each curve at the end of its run, in standardised warped values."""
        numbers = np.array([c.number for c in self.curves])
        return self.model.predict(CurvePoints(self.features, np.ones(len(numbers)), numbers))[0]

    def standardised(self, gain: float) -> float:
        """A gain in the units of ``ends``."""
        return float(self.model.standardised(self.scale.warp(gain)))
