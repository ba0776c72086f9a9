"""Quasi-random points for conditional spaces: one Sobol dimension for each parameter name.

Optuna's ``QMCSampler`` knows the parameters of the study's first trial only. All others it draws at random, with one
generator made from its seed; as samplers are made anew for each trial here, these were the same numbers in each trial.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial


class SobolSampler(BaseSampler):
    """Trial number n takes point n of one scrambled Sobol sequence, whose dimensions are the names in order.

    A point depends on the seed, the names and the trial's number alone. So a resumed study samples what it would have
    sampled, and trials may be asked for in any order. A parameter that exists in some trials only has its dimension
    all the same: the points of these trials are the part of the sequence that lies where its condition holds, which is
    as evenly spread (every box of a Sobol sequence holds its share of the points).

    Directions: Joe and Kuo 2008; scrambling: Matoušek 1998 (both in ``scipy.stats.qmc.Sobol``).

    Args:
        names: all parameters of the space. One that is missing here is drawn at random, with a seed of trial and name.
        seed: of the scrambling.
    """

    def __init__(self, names: Iterable[str], seed: int) -> None:
        self._dimension = {name: i for i, name in enumerate(sorted(set(names)))}
        self._seed = seed
        self._number = -1
        self._point: np.ndarray = np.empty(0)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return value_at(self._coordinate(trial.number, param_name), param_distribution)

    def _coordinate(self, number: int, name: str) -> float:
        if name not in self._dimension:
            return float(np.random.default_rng([self._seed, number, zlib.crc32(name.encode())]).random())
        if number != self._number:
            self._number, self._point = number, self._draw(number)
        return float(self._point[self._dimension[name]])

    def _draw(self, number: int) -> np.ndarray:
        from scipy.stats import qmc  # slow to import

        engine = qmc.Sobol(len(self._dimension), scramble=True, rng=np.random.default_rng(self._seed))
        if number:
            engine.fast_forward(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # balance is of 2^n points, and we take them one by one
            return np.asarray(engine.random(1)[0])


def value_at(part: float, distribution: BaseDistribution) -> Any:
    """The value at ``part`` (0 to below 1) of a distribution: equal parts have equal probability."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(part * len(distribution.choices))]
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    low, high, step = distribution.low, distribution.high, distribution.step
    whole = isinstance(distribution, IntDistribution)
    if distribution.log:
        edge = 0.5 if whole else 0.0  # each whole number has the length between its halves
        value = math.exp(math.log(low - edge) + part * (math.log(high + edge) - math.log(low - edge)))
    elif step is not None:
        value = low + step * int(part * (round((high - low) / step) + 1))
    else:
        value = low + part * (high - low)
    value = min(max(value, low), high)
    return round(value) if whole else value
