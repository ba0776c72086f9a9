"""A Gaussian process on learning curves: the value of a configuration at each fraction of its run.

The covariance of two values, of configurations x and x′ at the fractions f and f′ of their runs, is

    common(f, f′)                                 the course that all curves share
  + ρ · k(x, x′) · [end + early · t(f, f′) · w]   what hyperparameters do to the end, and to the way there
  + same · [offset + curve · t(f, f′) · w]        what a trial has of its own: its seed, its data order
  + noise · (1.32 − f)                            at equal trial and fraction: the noise of one validation

with w = (1.02 − f)(1.02 − f′), so that what is early fades towards the end; k the Matérn-5/2 kernel with a length for
each coordinate (Rasmussen and Williams 2006, eq. 4.17 and 5.1); t = exp(−1.5|u − u′| − |f − f′|) and common =
exp(−(u − u′)² / 0.72) with u = log2(f) / 5. The idea of such a sum is Swersky et al. 2014, arXiv 1406.3896
(freeze-thaw); the kernel over fractions is another one, because values here are warped and curves may cross.

A value may belong to another study, a task of its own. Then ρ is the correlation of the two tasks: 1 within one, ρ_j
between this study (0) and task j, ρ_i ρ_j between tasks i and j, as if task j were ρ_j times this study's landscape
plus a landscape of its own (a multi-task Gaussian process, Bonilla et al. 2007). Each task has a common course of its
own, and its values are standardised by themselves. A study that misleads gets a small ρ.

The hyperparameters are the maximum of the posterior under log-normal priors. Nothing here depends on a study, on
Optuna or on anything random: equal points give the equal model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from bigbatch.tune.models.one_thread import on_one_thread

Array = NDArray[np.float64]
Owners = NDArray[np.int64]

MAX_POINTS = 200
FIT_POINTS = 90
"""The hyperparameters are fitted to this many of the points; then the posterior of all points is computed once."""
FIT_EVALUATIONS = 20
"""Evaluations of the posterior's density and gradient for one fit."""
MARGIN = 0.05
"""In ``Scale``: the distance of the best value from the pole of the logarithm, as a part of the span."""
_AMPLITUDES = np.log([1.0, 0.7, 0.4, 0.08, 0.1, 0.01])
"""Priors' medians: common, end, early, offset, curve, noise."""
_AMPLITUDE_SDS = np.array([0.5, 0.7, 0.7, 0.8, 0.8, 0.8])
"""Narrower ones were worse by replay at 8 slots: with 0.4 times these, 15 of 24 searches on invented tables found a
good configuration later and 4 earlier (docs/decisions/026)."""
_LENGTH_SD = 0.8
_TASK_SD = 1.5
"""The prior of ρ: its logit has the mean 0, so that ρ = 0.5, and this standard deviation."""
_TRIALS_BEFORE = 4
"""The spread of this study's values is estimated as if this many more values had the spread of the other studies."""
# On the diagonal: two equal points would make the matrix singular.
_JITTER = 1e-5


@dataclass(frozen=True)
class Scale:
    """Values, larger is better, as −log((best − value) / span + MARGIN): equal ratios of distances to the best value
    become equal differences. Nothing depends on the unit of the values."""

    best: float
    span: float

    @classmethod
    def of(cls, values: Array, low: float) -> Scale:
        """The scale of these values, whose span reaches from the best one down to ``low``.

        Where none is above ``low``, it reaches down to the worst one; where all are equal, any span is as good.
        """
        best = float(values.max())
        low = low if low < best else float(values.min())
        return cls(best, best - low if low < best else abs(best) or 1.0)

    def warp(self, value: Array | float) -> Array:
        """Values on the model's scale."""
        return -np.log(np.maximum(self.best - np.asarray(value, float), 0) / self.span + MARGIN)


@dataclass(frozen=True)
class CurvePoints:
    """n values of learning curves."""

    features: Array
    """(n, d): the configuration in unit coordinates."""
    fraction: Array
    """(n,): of the run, above 0, at most 1."""
    owner: Owners
    """(n,): the trial, by a number that is not negative. Negative numbers belong to no trial."""
    task: Owners | None = None
    """(n,): 0 for this study, 1 and more for what other studies say. None: all belong to this study."""

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, which: NDArray[np.int64]) -> CurvePoints:
        """Some of the points."""
        task = None if self.task is None else self.task[which]
        return CurvePoints(self.features[which], self.fraction[which], self.owner[which], task)

    @property
    def tasks(self) -> Owners:
        """(n,): ``task``, with zeros for None."""
        return np.zeros(len(self), int) if self.task is None else self.task

    @property
    def other_tasks(self) -> int:
        """How many tasks there are besides this study."""
        return 0 if self.task is None else int(self.task.max(initial=0))


def thinned(
    points: CurvePoints, warped: Array, at_most: int = MAX_POINTS, first_owners: Collection[int] = ()
) -> NDArray[np.int64]:
    """Which points to keep: first the last point of each trial, among these first the ends of runs, then the best ones.

    A quarter of the places goes to points spread evenly over the others, so that the model still sees bad values.

    Args:
        first_owners: trials whose last points come before all others.
    """
    if len(points) <= at_most:
        return np.arange(len(points))
    last = np.zeros(len(points))
    latest: dict[int, int] = {}
    for i in np.argsort(points.fraction, kind="stable"):
        latest[int(points.owner[i])] = int(i)
    last[list(latest.values())] = 1.0
    wanted = last * np.isin(points.owner, list(first_owners)) if first_owners else 0.0
    # The weights are so far apart that each only decides between points that the one before calls equal.
    order = np.argsort(-(1e7 * wanted + 1e6 * last + 1e3 * (points.fraction > 0.999) + warped), kind="stable")
    first, rest = order[: at_most * 3 // 4], order[at_most * 3 // 4 :]
    spread = rest[np.linspace(0, len(rest) - 1, at_most - len(first)).astype(int)]
    return np.sort(np.concatenate([first, spread]))


@dataclass(frozen=True)
class CurveModel:
    """The posterior given observed points. Made by ``fit``."""

    theta: Array
    """(d + 6 + others,): logarithms of d lengths and of the six amplitudes, and the logit of each other task's ρ."""
    points: CurvePoints
    mean: float
    sd: float
    """The observed values of this study were standardised with these."""
    factor: Array
    """(n, n): the lower Cholesky factor of the covariance."""
    whitened: Array
    """(n,): factor⁻¹ · values."""

    @classmethod
    @on_one_thread
    def fit(cls, points: CurvePoints, values: Array, evaluations: int = FIT_EVALUATIONS) -> Self:
        """The model of these points, at most ``MAX_POINTS``, with warped values (n,)."""
        y, mean, sd = _standardised(points, values)
        theta = _fit_theta(points, y, evaluations)
        factor = cholesky(_noisy(theta, points), lower=True, check_finite=False)
        return cls(theta, points, mean, sd, factor, solve_triangular(factor, y, lower=True, check_finite=False))

    @on_one_thread
    def predict(self, at: CurvePoints) -> tuple[Array, Array]:
        """Mean and standard deviation (m,) of the curves without noise, in standardised warped values."""
        d = at.features.shape[1]
        cross = covariance(self.theta, self.points, at)
        solved = solve_triangular(self.factor, cross, lower=True, check_finite=False)
        common, end, early, offset, curve, _ = np.exp(self.theta[d : d + 6])
        fading, owned = (1.02 - at.fraction) ** 2, at.owner >= 0
        before = common + end + early * fading + owned * (offset + curve * fading)
        # Rounding can make a small variance negative.
        return solved.T @ self.whitened, np.sqrt(np.maximum(before - (solved**2).sum(0), 1e-8))

    @on_one_thread
    def resemblance(self, one: Array, other: Array) -> Array:
        """The correlation k (n, m) of what two sets of configurations, (n, d) and (m, d), do to a run."""
        return matern_52(squared_distances(one, other, np.exp(-self.theta[: one.shape[1]])))[0]

    def standardised(self, warped: Array | float) -> Array:
        """Warped values in the units of ``predict``."""
        return (np.asarray(warped, float) - self.mean) / self.sd


def _standardised(points: CurvePoints, values: Array) -> tuple[Array, float, float]:
    """The values (n,), standardised in each task, and mean and standard deviation of this study's.

    While this study has few values, its standard deviation is pulled towards that of the others.
    """
    tasks, y = points.tasks, np.empty(len(values))
    own = tasks == 0
    before = [(float(values[tasks == task].mean()), float(values[tasks == task].std())) for task in set(tasks[~own])]
    for task in range(1, points.other_tasks + 1):
        met = values[tasks == task]
        if len(met):
            # Equal values have no spread to divide by.
            y[tasks == task] = (met - met.mean()) / max(float(met.std()), 1e-3)
    n, mean = int(own.sum()), float(values[own].mean()) if own.any() else float(np.mean([m for m, _ in before]))
    variance = float(values[own].var()) if own.any() else 0.0
    if before:
        usual = float(np.mean([sd for _, sd in before])) ** 2
        variance = (n * variance + _TRIALS_BEFORE * usual) / (n + _TRIALS_BEFORE)
    sd = max(variance**0.5, 1e-3)
    y[own] = (values[own] - mean) / sd
    return y, mean, sd


def covariance(theta: Array, one: CurvePoints, other: CurvePoints) -> Array:
    """The covariance (n, m) of two sets of curve values, without noise."""
    d = one.features.shape[1]
    common, end, early, offset, curve, _ = np.exp(theta[d : d + 6])
    parts = _Parts.of(one, other)
    matern, _ = matern_52(squared_distances(one.features, other.features, np.exp(-theta[:d])))
    matern = matern * related(theta[d + 6 :], one.tasks, other.tasks)
    return common * parts.common + matern * (end + early * parts.fading) + parts.same * (offset + curve * parts.fading)


def related(logits: Array, one: Owners, other: Owners) -> Array:
    """The correlations (n, m) of the tasks of two sets of points: 1 within a task, else the product of their ρ."""
    rho = np.concatenate([[1.0], 1 / (1 + np.exp(-logits))])
    return np.where(one[:, None] == other[None], 1.0, rho[one][:, None] * rho[other][None])


@dataclass(frozen=True)
class _Parts:
    """The parts of the covariance that do not depend on the hyperparameters, each (n, m)."""

    common: Array
    fading: Array
    same: Array

    @classmethod
    def of(cls, one: CurvePoints, other: CurvePoints) -> _Parts:
        f, g = one.fraction[:, None], other.fraction[None]
        apart = np.abs(np.log2(f) - np.log2(g)) / 5
        fading = np.exp(-1.5 * apart - np.abs(f - g)) * (1.02 - f) * (1.02 - g)
        same = (one.owner[:, None] == other.owner[None]) & (one.owner >= 0)[:, None]
        same_task = one.tasks[:, None] == other.tasks[None]
        return cls(np.exp(-((apart / 0.6) ** 2) / 2) * same_task, fading, same.astype(float))


def squared_distances(one: Array, other: Array, scale: Array | float) -> Array:
    """Squared distances (n, m) of scaled coordinates."""
    a, b = one * scale, other * scale
    # Rounding can make the square of a small distance negative.
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T, 0)


def matern_52(squared: Array) -> tuple[Array, Array]:
    """Matérn-5/2 of squared scaled distances, and −2 times its derivative by them."""
    r = np.sqrt(5 * squared)
    decay = np.exp(-r)
    return (1 + r + r * r / 3) * decay, 5 / 3 * (1 + r) * decay


def _noisy(theta: Array, points: CurvePoints) -> Array:
    """The covariance (n, n) of observed values."""
    matrix = covariance(theta, points, points)
    matrix[np.diag_indices_from(matrix)] += (
        np.exp(theta[points.features.shape[1] + 5]) * (1.32 - points.fraction) + _JITTER
    )
    return matrix


def prior(d: int, others: int = 0) -> tuple[Array, Array]:
    """Median and standard deviation (d + 6 + others,) of the hyperparameters' logarithms, and of the logits of ρ."""
    lengths = np.full(d, np.log(0.5 * np.sqrt(max(d, 1))))
    middle = np.concatenate([lengths, _AMPLITUDES, np.zeros(others)])
    return middle, np.concatenate([np.full(d, _LENGTH_SD), _AMPLITUDE_SDS, np.full(others, _TASK_SD)])


def negative_log_posterior(
    theta: Array, points: CurvePoints, y: Array, parts: _Parts | None = None
) -> tuple[float, Array]:
    """−log p(theta | y) up to a constant, and its gradient (Rasmussen and Williams 2006, eq. 5.8 and 5.9)."""
    d = points.features.shape[1]
    middle, sd = prior(d, len(theta) - d - 6)
    parts = parts or _Parts.of(points, points)
    common, end, early, offset, curve, noise = np.exp(theta[d : d + 6])
    scale = np.exp(-theta[:d])
    matern, slope = matern_52(squared_distances(points.features, points.features, scale))
    tasks = related(theta[d + 6 :], points.tasks, points.tasks)
    matern, slope = matern * tasks, slope * tasks
    effect = end + early * parts.fading
    matrix = common * parts.common + matern * effect + parts.same * (offset + curve * parts.fading)
    diagonal = noise * (1.32 - points.fraction)
    matrix[np.diag_indices_from(matrix)] += diagonal + _JITTER
    factor = cholesky(matrix, lower=True, check_finite=False)
    inverse = cho_solve((factor, True), np.eye(len(y)), check_finite=False)
    weights = inverse @ y
    away = (theta - middle) / sd
    value = 0.5 * y @ weights + np.log(np.diag(factor)).sum() + 0.5 * away @ away
    inner = 0.5 * (inverse - np.outer(weights, weights))  # d value / d matrix
    pull = inner * slope * effect
    scaled = points.features * scale
    lengths = 2 * (pull.sum(1) @ scaled**2 - np.einsum("id,id->d", scaled, pull @ scaled))
    own = inner * parts.same
    amplitudes = [
        common * (inner * parts.common).sum(),
        end * (inner * matern).sum(),
        early * (inner * matern * parts.fading).sum(),
        offset * own.sum(),
        curve * (own * parts.fading).sum(),
        np.diag(inner) @ diagonal,
    ]
    rhos = _task_gradient(inner * matern * effect, theta[d + 6 :], points.tasks)
    return float(value), np.concatenate([lengths, amplitudes, rhos]) + away / sd


def _task_gradient(pull: Array, logits: Array, tasks: Owners) -> Array:
    """The derivative by each logit; ``pull`` (n, n) is that by the logarithm of each pair's covariance."""
    between = np.where(tasks[:, None] == tasks[None], 0.0, pull)
    rho = 1 / (1 + np.exp(-logits))
    return np.array([2 * (1 - rho[k]) * between[tasks == k + 1].sum() for k in range(len(logits))])


def _fit_theta(points: CurvePoints, y: Array, evaluations: int) -> Array:
    middle, sd = prior(points.features.shape[1], points.other_tasks)
    if len(points) > FIT_POINTS:
        which = np.unique(np.linspace(0, len(points) - 1, FIT_POINTS).astype(int))
        points, y = points.take(which), y[which]
    found = minimize(
        negative_log_posterior,
        middle,
        args=(points, y, _Parts.of(points, points)),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(middle - 3 * sd, middle + 3 * sd, strict=True)),
        options={"maxfun": evaluations, "maxcor": 10},
    )
    return np.asarray(found.x)
