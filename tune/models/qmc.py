"""Quasi-random points for conditional spaces: one Sobol dimension for each parameter name.

Optuna's ``QMCSampler`` knows only the parameters of the study's first trial. It draws all others at random, from its
seed. Here each trial gets a new sampler, so every trial would draw the same numbers.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterable, Mapping

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

from bigbatch.search_spaces.priors import LogNormal


class OneByOneSampler(BaseSampler):
    """Samples each parameter by itself."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty: each parameter is sampled by itself."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        return {}


class SobolSampler(OneByOneSampler):
    """Trial number n takes point n of one scrambled Sobol sequence. Its dimensions are the names, in order.

    A point depends only on the seed, the names and the trial's number. So a resumed study samples the same points
    as an uninterrupted one, in any order of trials. A parameter that exists only in some trials has its own
    dimension too. The points of these trials are the part of the sequence where its condition holds, and this part
    is as evenly spread: every box of a Sobol sequence holds its share of the points.

    Directions: Joe and Kuo 2008; scrambling: Matoušek 1998 (both in ``scipy.stats.qmc.Sobol``).

    Args:
        names: all parameters of the space. Another parameter is drawn at random, seeded by trial and name.
        seed: seed of the scrambling.
        priors: soft priors by parameter. A coordinate of the sequence is a quantile of the prior.
    """

    def __init__(self, names: Iterable[str], seed: int, priors: Mapping[str, LogNormal] | None = None) -> None:
        self._dimension = {name: i for i, name in enumerate(sorted(set(names)))}
        self._seed = seed
        self._priors = dict(priors or {})
        self._number = -1
        self._point: np.ndarray = np.empty(0)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """The parameter's value at this trial's point."""
        part = self._coordinate(trial.number, param_name)
        return value_at(part, param_distribution, self._priors.get(param_name))

    def _coordinate(self, number: int, name: str) -> float:
        if name not in self._dimension:
            return random_part(self._seed, number, name)
        if number != self._number:
            self._number, self._point = number, self._draw(number)
        return float(self._point[self._dimension[name]])

    def _draw(self, number: int) -> np.ndarray:
        from scipy.stats import qmc  # slow to import

        engine = qmc.Sobol(len(self._dimension), scramble=True, rng=np.random.default_rng(self._seed))
        if number:
            engine.fast_forward(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # SciPy warns unless 2^n points are drawn at once
            return np.asarray(engine.random(1)[0])


def random_part(seed: int, number: int, name: str) -> float:
    """A random number from 0 to below 1, the same for the same trial and parameter, whatever else was drawn."""
    # Not hash(): that of a text differs between processes, and a search that goes on would draw otherwise.
    return float(np.random.default_rng([seed, number, zlib.crc32(name.encode())]).random())


def value_at(part: float, distribution: BaseDistribution, prior: LogNormal | None = None) -> object:
    """The value at quantile ``part``, from 0 to below 1: of ``prior`` within the range, or of the distribution."""
    if prior is not None and isinstance(distribution, FloatDistribution):
        return prior.value(part, distribution.low, distribution.high)
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(part * len(distribution.choices))]
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    low, high, step = distribution.low, distribution.high, distribution.step
    whole = isinstance(distribution, IntDistribution)
    if distribution.log:
        edge = 0.5 if whole else 0.0  # a whole number n covers the interval from n − ½ to n + ½
        value = math.exp(math.log(low - edge) + part * (math.log(high + edge) - math.log(low - edge)))
    elif step is not None:
        value = low + step * int(part * (round((high - low) / step) + 1))
    else:
        value = low + part * (high - low)
    # Logarithm and exponential may round to just outside of the range.
    value = min(max(value, low), high)
    return round(value) if whole else value
