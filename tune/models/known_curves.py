"""What other studies say: predictions from a single one of them, and curves for the curve model.

A prediction is for configurations of this search. It is judged by how well it ranks their results. In the model each
batch of another study is a task of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigbatch.tune.models.curve_model import CurvePoints, Scale, low_and_lost, nothing_learnt, thinned
from bigbatch.tune.models.one_thread import on_one_thread
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial

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
def known_prediction(study: KnownStudy, facts: SearchFacts, asked: Sequence[Mapping[str, object]]) -> Array:
    """The expected rank share (n,) of each configuration in the other study.

    The mean of a Gaussian process with fixed lengths (Rasmussen and Williams 2006, eq. 2.25) over the rank shares of
    its trials that have finished or diverged, each among those of its own group.
    """
    params: list[Mapping[str, object]] = []
    shares: list[float] = []
    for trials in study.groups().values():
        ended = [trial for trial in trials if trial.finished or trial.diverged]
        params += [trial.params for trial in ended]
        shares += rank_shares([_end(trial, facts) for trial in ended]).tolist()
    if not params:
        return np.zeros(len(asked))
    space = UnitSpace(facts.dimensions)
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


def _end(trial: KnownTrial, facts: SearchFacts) -> float:
    return -np.inf if trial.diverged else facts.objective.gain(trial.values[max(trial.values)])


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
    groups = [_judged(trials, facts) for study in studies for trials in study.groups().values()]
    groups = [trials for trials in groups if any(trial.values for trial in trials)]
    for place, trials in enumerate(groups, 1):
        scale, worst = _scale(trials, facts)
        for trial in trials:
            number = FIRST_OWNER + len(owner)
            for part, gain in _points(trial, facts, worst):
                features.append(space.encode(trial.params))
                fraction.append(part)
                owner.append(number)
                task.append(place)
                warped.append(float(scale.warp(gain)))
        best += [trial.params for trial in _best_first(trials, facts)[:BEST]]
    if not groups:
        return None
    points = CurvePoints(np.array(features), np.array(fraction), np.array(owner), np.array(task))
    kept = thinned(points, np.array(warped), KNOWN_POINTS)
    return KnownCurves(points.take(kept), np.array(warped)[kept], tuple(best))


def _judged(trials: Sequence[KnownTrial], facts: SearchFacts) -> list[KnownTrial]:
    """The trials, where those that have learnt nothing count as diverged, as this study's own do."""
    gain = facts.objective.gain
    met = [gain(value) for trial in trials for value in trial.values.values()]
    bar = nothing_learnt(max(met, default=-math.inf), gain(facts.objective.worst))

    def is_stuck(trial: KnownTrial) -> bool:
        last = max(trial.values, default=0)
        return bool(last) and last >= trial.epochs / 2 and gain(trial.values[last]) <= bar

    return [replace(trial, diverged=trial.diverged or is_stuck(trial)) for trial in trials]


def _scale(trials: Sequence[KnownTrial], facts: SearchFacts) -> tuple[Scale, float]:
    """The scale of a task's values, and what a diverged run is worth in it."""
    gain = facts.objective.gain
    sound = [trial for trial in trials if trial.values and not trial.diverged]
    late = [trial for trial in sound if max(trial.values) >= trial.epochs / 2]
    low, lost = low_and_lost([gain(t.values[max(t.values)]) for t in late or sound], gain(facts.objective.worst))
    return Scale.of(np.array([gain(value) for trial in trials for value in trial.values.values()]), low), lost


def _points(trial: KnownTrial, facts: SearchFacts, worst: float) -> list[tuple[float, float]]:
    if trial.diverged:
        return [(1.0, worst)]
    return [(min(1.0, epoch / trial.epochs), facts.objective.gain(value)) for epoch, value in trial.values.items()]


def _best_first(trials: Sequence[KnownTrial], facts: SearchFacts) -> list[KnownTrial]:
    done = [trial for trial in trials if trial.finished]
    return sorted(done, key=lambda trial: (-facts.objective.gain(trial.values[max(trial.values)]), trial.number))
