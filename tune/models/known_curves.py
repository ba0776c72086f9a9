"""What other studies say: predictions from a single one of them, and curves for the curve model.

A prediction is for configurations of this search. It is judged by how well it ranks their results. In the model each
batch of another study is a task of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigbatch.tune.models.curve_history import judged, low_and_lost
from bigbatch.tune.models.curve_model import CurvePoints, Scale, thinned
from bigbatch.tune.models.one_thread import on_one_thread
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.knowledge import KnownStudy, best_first

FEWEST_RESULTS = 5
"""Fewer results say nothing about a rank correlation."""
LENGTH = 0.4
"""Of the kernel, for one coordinate."""
NOISE = 0.3

Array = NDArray[np.float64]


def rank_shares(values: Sequence[float]) -> Array:
    """The place of each value among all, −½ to ½. Equal values share their place."""
    found = np.asarray(values, float)
    order = np.sort(found)
    middle = (np.searchsorted(order, found, "left") + np.searchsorted(order, found, "right")) / 2
    return np.asarray(middle / max(len(found), 1) - 0.5)


@on_one_thread
def known_prediction(study: KnownStudy, space: UnitSpace, asked: Sequence[Mapping[str, object]]) -> Array:
    """The expected rank share (n,) of each configuration in the other study.

    The mean of a Gaussian process with fixed lengths (Rasmussen and Williams 2006, eq. 2.25) over the rank shares of
    its trials that have finished or diverged, each among those of its own group.
    """
    params: list[Mapping[str, object]] = []
    shares: list[float] = []
    for curves in study.groups().values():
        ended = [curve for curve in curves if curve.finished or curve.diverged]
        params += [curve.params for curve in ended]
        shares += rank_shares([-np.inf if curve.diverged else curve.last for curve in ended]).tolist()
    if not params:
        return np.zeros(len(asked))
    seen = np.array([space.encode(one) for one in params])
    at = np.array([space.encode(one) for one in asked]).reshape(len(asked), space.width)
    gram = _kernel(seen, seen) + NOISE * np.eye(len(seen))
    return np.asarray(_kernel(at, seen) @ np.linalg.solve(gram, np.array(shares)))


def rank_correlation(predicted: Sequence[float], came_out: Sequence[float], groups: Sequence[object]) -> float | None:
    """Spearman's correlation of two rankings, each within its group. None if too little, or nothing, can be ranked.

    Groups that do not compare, such as batches, are ranked by themselves; their places are put together.
    """
    if len(came_out) < FEWEST_RESULTS:
        return None
    one, other = np.zeros(len(came_out)), np.zeros(len(came_out))
    for group in dict.fromkeys(groups):
        of_it = [i for i, found in enumerate(groups) if found == group]
        one[of_it] = rank_shares([predicted[i] for i in of_it])
        other[of_it] = rank_shares([came_out[i] for i in of_it])
    if one.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _kernel(one: Array, other: Array) -> Array:
    squared = ((one[:, None] - other[None]) ** 2).sum(-1)
    return np.asarray(np.exp(-squared / (2 * LENGTH**2 * max(one.shape[1], 1))))


KNOWN_POINTS = 80
"""Other studies give the model at most this many points."""
FIRST_OWNER = 1_000_000
"""The owners of known curves are numbers from here on, which no trial of this study has."""
BEST = 2
"""New configurations are proposed near this many of the best ones of each task."""


@dataclass(frozen=True)
class KnownCurves:
    """Points of other studies' curves, with warped values, and their best configurations."""

    points: CurvePoints
    warped: Array
    """(n,): each task on a scale of its own."""
    best: tuple[Mapping[str, object], ...]

    def beside(self, own: CurvePoints, warped: Array) -> tuple[CurvePoints, Array]:
        """These points after those of this study, and all their values."""
        joined = CurvePoints(
            np.concatenate([own.features, self.points.features]),
            np.concatenate([own.fraction, self.points.fraction]),
            np.concatenate([own.owner, self.points.owner]),
            np.concatenate([own.tasks, self.points.tasks]),
        )
        return joined, np.concatenate([warped, self.warped])


def known_curves(facts: SearchFacts, space: UnitSpace, studies: Sequence[KnownStudy]) -> KnownCurves | None:
    """The curves of these studies; None if they have none."""
    features, fraction, owner, task, warped = list[Array](), list[float](), list[int](), list[int](), list[float]()
    best: list[Mapping[str, object]] = []
    groups = [judged(curves, facts.objective) for study in studies for curves in study.groups().values()]
    groups = [curves for curves in groups if any(curve.gains for curve in curves)]
    for place, curves in enumerate(groups, 1):
        low, lost = low_and_lost(curves, facts.objective)
        scale = Scale.of(np.array([gain for curve in curves for gain in curve.gains.values()]), low)
        for curve in curves:
            number = FIRST_OWNER + len(owner)
            for epoch, gain in [(curve.epochs, lost)] if curve.diverged else curve.gains.items():
                features.append(space.encode(curve.params))
                fraction.append(min(1.0, epoch / curve.epochs))
                owner.append(number)
                task.append(place)
                warped.append(float(scale.warp(gain)))
        best += [curve.params for curve in best_first(curves)[:BEST]]
    if not groups:
        return None
    points = CurvePoints(np.array(features), np.array(fraction), np.array(owner), np.array(task))
    kept = thinned(points, np.array(warped), KNOWN_POINTS)
    return KnownCurves(points.take(kept), np.array(warped)[kept], tuple(best))
