"""The parameters of a space as coordinates from 0 to 1, also where some exist only with some values of others.

Their quasi-random points have one Sobol dimension for each parameter's name. Optuna's ``QMCSampler`` knows only the
parameters of the study's first trial. It draws all others at random, from its seed. Here each trial gets a new sampler,
so every trial would draw the same numbers.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.search_spaces.priors import LogNormal
from bigbatch.tune.models.protocol import Dimension, SearchFacts


class SobolSampler(BaseSampler):
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

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty: each parameter is sampled by itself."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        return {}

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
    # Not hash(): that of a text differs between processes, and a resumed search would draw other numbers.
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


ONE_HOT = 0.7
"""The coordinate of a chosen word, so that two words are about as far apart as the ends of a range."""
ABSENT = 0.5
"""Each coordinate of a parameter that the configuration does not have."""
NEAR_SD = 0.1
SHARE_AFRESH = 0.5
"""Of the parameters of a neighbour, the share that is drawn anew."""

Params = Mapping[str, object]


class UnitSpace:
    """Coordinates of configurations, and random configurations."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.dimensions = _parents_first(dimensions)
        self.width = sum(_width(d.distribution) for d in self.dimensions)

    def encode(self, params: Params) -> NDArray[np.float64]:
        """The coordinates (width,) of a configuration."""
        parts: list[float] = []
        for dimension in self.dimensions:
            d = dimension.distribution
            if dimension.name not in params:
                parts += [ABSENT] * _width(d)
            elif is_word(d):
                parts += [ONE_HOT * (choice == params[dimension.name]) for choice in d.choices]
            else:
                parts.append(position(params[dimension.name], d))
        return np.array(parts)

    def sample(self, rng: np.random.Generator, fixed: Params) -> dict[str, object]:
        """A random configuration, from soft priors if there are any, with the ``fixed`` values where they exist."""
        return self._build(fixed, lambda d: value_at(float(rng.random()), d.distribution, d.prior))

    def neighbour(self, rng: np.random.Generator, of: Params, fixed: Params) -> dict[str, object]:
        """A configuration like ``of``: half of its parameters are drawn anew, the others are moved a little."""

        def drawn(dimension: Dimension) -> object:
            d = dimension.distribution
            part, move, afresh = float(rng.random()), float(rng.normal(0, NEAR_SD)), rng.random() < SHARE_AFRESH
            if afresh or dimension.name not in of:
                return value_at(part, d, dimension.prior)
            if not isinstance(d, CategoricalDistribution):
                # value_at takes parts below 1.
                return value_at(min(max(position(of[dimension.name], d) + move, 0.0), math.nextafter(1.0, 0.0)), d)
            if not _is_numeric(d):
                return of[dimension.name]
            target = position(of[dimension.name], d) + move
            return min(d.choices, key=lambda choice: abs(position(choice, d) - target))

        return self._build(fixed, drawn)

    def _build(self, fixed: Params, draw: Callable[[Dimension], object]) -> dict[str, object]:
        params: dict[str, object] = {}
        for dimension in self.dimensions:
            value = draw(dimension)  # also for an absent one, so that each parameter has its own random numbers
            if dimension.is_active(params):
                params[dimension.name] = fixed.get(dimension.name, value)
        return params


def position(value: object, distribution: BaseDistribution) -> float:
    """Where a number is in its range, from 0 to 1, by its logarithm if the range is logarithmic.

    A choice among positive numbers has the place of its logarithm; among other numbers, that of its size.
    """
    assert isinstance(value, (int, float))
    if isinstance(distribution, CategoricalDistribution):
        numbers = [float(c) for c in distribution.choices if isinstance(c, (int, float))]
        low, high, log = min(numbers), max(numbers), min(numbers) > 0
    else:
        assert isinstance(distribution, (FloatDistribution, IntDistribution))
        low, high, log = distribution.low, distribution.high, distribution.log
    if high <= low:
        return ABSENT
    x = min(max(float(value), low), high)
    return math.log(x / low) / math.log(high / low) if log else (x - low) / (high - low)


def words_of(facts: SearchFacts) -> dict[str, set[object]]:
    """By parameter, the choices that have no order, e.g. the names of optimizers.

    Of parameters that every configuration has, but not of the frontier's.
    """
    return {
        d.name: set(d.distribution.choices)
        for d in facts.dimensions
        if is_word(d.distribution) and d.always and not d.active_when and d.name != facts.frontier
    }


def _is_numeric(distribution: CategoricalDistribution) -> bool:
    return all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in distribution.choices)


def middle_of(dimension: Dimension) -> object:
    """The middle of a range, or the median of its prior; of choices among numbers, the middle one in their order."""
    d = dimension.distribution
    if isinstance(d, CategoricalDistribution):
        return sorted(d.choices)[len(d.choices) // 2]  # type: ignore[type-var]
    return value_at(0.5, d, dimension.prior)


def is_word(distribution: BaseDistribution) -> TypeGuard[CategoricalDistribution]:
    """Whether the values are choices without an order."""
    return isinstance(distribution, CategoricalDistribution) and not _is_numeric(distribution)


def _width(distribution: BaseDistribution) -> int:
    return len(distribution.choices) if is_word(distribution) else 1


def _parents_first(dimensions: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """The dimensions in an order in which each one comes after those that decide whether it exists."""
    waiting, placed = list(dimensions), list[Dimension]()
    names = {d.name for d in dimensions}
    while waiting:
        known = {d.name for d in placed}
        ready = [d for d in waiting if all(name in known or name not in names for name in d.active_when)]
        # A circle of conditions must not keep this loop going for ever.
        placed += ready or waiting[:1]
        waiting = [d for d in waiting if d not in placed]
    return tuple(placed)
