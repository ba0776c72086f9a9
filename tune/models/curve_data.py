"""The learning curves of a study as a model of curves needs them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from bigbatch.tune.models.curve_history import CurveHistory, judged, low_and_lost, nothing_learnt
from bigbatch.tune.models.curve_model import MAX_POINTS, CurveModel, CurvePoints, Scale, thinned
from bigbatch.tune.models.known_curves import KnownCurves, known_curves, known_prediction, rank_correlation
from bigbatch.tune.models.look_value import first_looks
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.knowledge import Curve

Array = NDArray[np.float64]
KnownKey = tuple[int, ...] | None
"""The places of the other studies that are believed; None where all are disregarded."""
MARKS = np.array([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
"""The model takes a curve's values at these fractions of the run, and its last one."""
FEWEST_CURVES = 3
"""The model needs this many curves."""
GOOD_SHARE, MISLED_BY = 0.15, 1
"""Another study has misled if at least MISLED_BY of the runs that it predicted to be good, and more than half of them,
have learnt nothing. Predicted to be good are runs with an expected rank share above GOOD_SHARE, and first trials that
the model proposed."""


def startup_trials(facts: SearchFacts) -> int:
    """How many first trials are quasi-random: ten, or one for each slot up to 16 if that is more. In a short search at
    most a third of the trials, or four if that is more."""
    return min(max(10, min(facts.slots, 16)), max(4, facts.most_trials // 3))


def first_round(facts: SearchFacts) -> int:
    """How many first trials are quasi-random while no run has ended: a run that starts well need not end well."""
    return min(max(startup_trials(facts), min(first_looks(facts), 32)), max(4, facts.most_trials // 3))


class CurveEncoder:
    """The model's view of a study's curves. It is a cache: all of it can be made again from the study."""

    def __init__(self, facts: SearchFacts) -> None:
        self.space, self.facts = UnitSpace(facts.dimensions), facts
        self.history = CurveHistory(facts)
        self._known: dict[tuple[int, ...], KnownCurves | None] = {}
        self._predicted: dict[tuple[int, int], float] = {}
        self._features: dict[int, Array] = {}
        self._marks: dict[int, list[int]] = {}

    def features(self, curve: Curve) -> Array:
        """The coordinates of a curve's configuration."""
        if curve.number not in self._features:
            # What a refused trial had not drawn gets random values: as absent it would seem the reason for the refusal.
            params = (
                curve.params if curve.gains else self.space.sample(np.random.default_rng(curve.number), curve.params)
            )
            self._features[curve.number] = self.space.encode(params)
        return self._features[curve.number]

    def learn(self, study: Study, *, alone: bool = False, also: Collection[int] = ()) -> Learned | None:
        """The model of a study's curves and, unless ``alone``, of what other studies say; None if there are too few.

        Args:
            also: numbers of curves that the model needs, although it takes only a part of those of a large study.
        """
        self.history.update(study)
        curves = judged(self.history.shown(also), self.facts.objective)
        key = None if alone else self._trusted(curves)
        return self._learned(curves, key, also if len(curves) < len(self.history) else ())

    def _learned(self, curves: Sequence[Curve], key: KnownKey, first: Collection[int] = ()) -> Learned | None:
        """The model of these curves and of the other studies that ``key`` names."""
        known = self._known[key] if key is not None else None
        if sum(bool(c.gains) for c in curves) < FEWEST_CURVES and known is None:
            return None
        low, lost = low_and_lost(curves, self.facts.objective)
        owner, fraction, gains, row = [], list[float](), list[float](), list[int]()
        for i, curve in enumerate(curves):
            for epoch, gain in self._points(curve, lost):
                owner.append(curve.number)
                fraction.append(min(1.0, epoch / curve.epochs))
                gains.append(gain)
                row.append(i)
        features = np.array([self.features(c) for c in curves]).reshape(len(curves), self.space.width)
        points = CurvePoints(features[np.array(row, int)], np.array(fraction), np.array(owner, int))
        scale = Scale.of(np.array(gains or [low]), low)
        warped = scale.warp(np.array(gains))
        kept = thinned(points, warped, MAX_POINTS - (len(known.points) if known else 0), first)
        points, warped = points.take(kept), warped[kept]
        if known is not None:
            points, warped = known.beside(points, warped)
        best = known.best if known else ()
        return Learned(CurveModel.fit(points, warped), scale, tuple(curves), features, best)

    def trusted(self, study: Study) -> tuple[int, ...]:
        """The places of the other studies that this one does not refute."""
        self.history.update(study)
        return self._trusted(judged(self.history.shown(), self.facts.objective))

    def _trusted(self, curves: Sequence[Curve]) -> tuple[int, ...]:
        """The places of the other studies, without those that rank this one's curves no better than by chance.

        The model alone would unlearn them too, but only after more trials.
        """
        kept = tuple(i for i in range(len(self.facts.knowledge)) if self._agrees(i, curves))
        if kept not in self._known:
            studies = [self.facts.knowledge[i] for i in kept]
            self._known[kept] = known_curves(self.facts, self.space, studies)
        return kept

    def _agrees(self, place: int, curves: Sequence[Curve]) -> bool:
        """Whether a study may be believed: it has not misled, and the rank correlation of its prediction with these
        curves is positive, or not known yet."""
        curves = [c for c in curves if not c.infeasible]
        new = [c for c in curves if (place, c.number) not in self._predicted]
        if new:
            predicted = known_prediction(self.facts.knowledge[place], self.space, [c.params for c in new])
            self._predicted.update({(place, c.number): float(p) for c, p in zip(new, predicted, strict=True)})
        if self._has_misled(place, curves):
            return False
        ends = [-math.inf if c.diverged else c.last for c in curves]
        # Curves compare at about the same part of their runs; a diverged one compares with those that have ended.
        parts = [0 if c.diverged or c.finished else min(-1, round(math.log2(c.part))) for c in curves]
        groups = [(c.group, part) for c, part in zip(curves, parts, strict=True)]
        found = rank_correlation([self._predicted[place, c.number] for c in curves], ends, groups)
        return found is None or found > 0

    def _has_misled(self, place: int, curves: Sequence[Curve]) -> bool:
        """Whether most of the runs that a study predicted to be good have learnt nothing. A rank correlation does not
        show that, because such runs are all equal."""
        asked = startup_trials(self.facts)
        promised = [
            c
            for c in curves
            if (c.diverged or c.part >= 0.5)
            and (self._predicted[place, c.number] > GOOD_SHARE or (c.number < asked and c.number % 2 == 0))
        ]
        bar = nothing_learnt([*curves, *self.facts.knowledge[place].curves], self.facts.objective)
        empty = sum(c.diverged or c.last <= bar for c in promised)
        return empty >= MISLED_BY and 2 * empty > len(promised)

    def _points(self, curve: Curve, lost: float) -> list[tuple[int, float]]:
        """Epochs and gains to learn from. A diverged or infeasible curve is a single point at its end, with the gain
        ``lost``."""
        if not curve.competes:
            return [(curve.epochs, lost)]
        last = max(curve.gains)
        if curve.epochs not in self._marks:
            # An eighth of 24 epochs may come out as a little more than 3.
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
    features: Array
    """(curves, d)."""
    known_best: tuple[Mapping[str, object], ...] = ()
    """The best configurations of other studies, as far as these are believed."""

    def ends(self) -> Array:
        """The predicted value of each curve at the end of its run, in standardised warped values."""
        numbers = np.array([c.number for c in self.curves])
        return self.model.predict(CurvePoints(self.features, np.ones(len(numbers)), numbers))[0]

    def standardised(self, gain: float) -> float:
        """A gain in the units of ``ends``."""
        return float(self.model.standardised(self.scale.warp(gain)))
