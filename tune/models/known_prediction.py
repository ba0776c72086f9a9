"""What another study alone predicts for configurations of this search, and how well it ranked what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

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
_NORMAL = NormalDist()


def rank_shares(values: Sequence[float]) -> Array:
    """The place of each value among all, −½ to ½. Equal values share their place."""
    found = np.asarray(values, float)
    order = np.sort(found)
    middle = (np.searchsorted(order, found, "left") + np.searchsorted(order, found, "right")) / 2
    return np.asarray(middle / max(len(found), 1) - 0.5)


def normal_scores(values: Sequence[float]) -> list[float]:
    """The normal score of each value's rank among all: 0 in the middle, larger for larger values."""
    return [_NORMAL.inv_cdf(share + 0.5) for share in rank_shares(values)]


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
