"""What other studies say, as a model of curves needs it: each of their batches is a task of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigbatch.tune.models.curve_model import CurvePoints, Scale, low_and_lost, nothing_learnt, thinned
from bigbatch.tune.models.protocol import SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial

KNOWN_POINTS = 80
"""Other studies give the model at most this many points."""
FIRST_OWNER = 1_000_000
"""The owners of known curves are numbers from here on, which no trial of this study has."""
BEST = 2
"""Of each task, the configurations near which new ones are proposed."""

Array = NDArray[np.float64]


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
