"""The Gaussian process on learning curves, against the textbook's formulas written out, and against known curves."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from threadpoolctl import threadpool_info, threadpool_limits

from bigbatch.tune.models import curve_model
from bigbatch.tune.models.curve_model import CurveModel, CurvePoints, Scale, negative_log_posterior, prior, thinned


def some_points(n: int, d: int, seed: int = 0) -> CurvePoints:
    """Four points of each trial."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n // 4), 4)
    return CurvePoints(rng.random((n // 4, d))[owner], np.tile([0.125, 0.25, 0.5, 1.0], n // 4), owner)


def one_covariance(theta, x, f, i, y, g, j) -> float:
    """The module's formula for a pair of points, term by term, without numpy's arrays."""
    d = len(x)
    lengths, (common, end, early, offset, curve, _) = np.exp(theta[:d]), np.exp(theta[d:])
    r = np.sqrt(5 * sum(((a - b) / length) ** 2 for a, b, length in zip(x, y, lengths, strict=True)))
    k = (1 + r + r**2 / 3) * np.exp(-r)
    u, v = np.log2(f) / 5, np.log2(g) / 5
    fading = np.exp(-1.5 * abs(u - v) - abs(f - g)) * (1.02 - f) * (1.02 - g)
    shared = common * np.exp(-((u - v) ** 2) / 0.72) + k * (end + early * fading)
    return shared + (offset + curve * fading if i == j and i >= 0 else 0.0)


def test_the_posterior_is_that_of_a_normal_distribution_conditioned_by_hand():
    points, at = some_points(24, 3), some_points(8, 3, seed=1)
    at = CurvePoints(at.features, at.fraction, at.owner - 1)  # the first trial's points belong to no trial
    values = np.random.default_rng(2).normal(size=24)
    model = CurveModel.fit(points, values, evaluations=3)
    both = [*zip(points.features, points.fraction, points.owner, strict=True)]
    asked = [*zip(at.features, at.fraction, at.owner, strict=True)]
    K = np.array([[one_covariance(model.theta, *a, *b) for b in both] for a in both])
    K += np.diag(np.exp(model.theta[-1]) * (1.32 - points.fraction) + 1e-5)
    cross = np.array([[one_covariance(model.theta, *a, *b) for b in both] for a in asked])
    y = (values - values.mean()) / values.std()
    mean, sd = model.predict(at)
    assert mean == pytest.approx(cross @ np.linalg.solve(K, y), abs=1e-8)
    own = np.array([one_covariance(model.theta, *a, *a) for a in asked])
    assert sd**2 == pytest.approx(own - np.einsum("ij,ji->i", cross, np.linalg.solve(K, cross.T)), abs=1e-8)
    assert model.standardised(values) == pytest.approx(y)


def test_a_cut_curve_is_continued_like_the_whole_ones_beside_it():
    """Power laws whose level the only coordinate decides; a curve is seen to a tenth, its end is asked for."""
    rng = np.random.default_rng(5)
    x, marks = rng.random(20), np.array([0.1, 0.25, 0.5, 1.0])
    course = 1 - 0.5 * marks**-0.4
    features, fraction, owner, value = [], [], [], []
    for i in range(20):
        for f, c in zip(marks, course, strict=True):
            if i < 15 or f == 0.1:
                features.append([x[i]])
                fraction.append(f)
                owner.append(i)
                value.append(c - 0.3 * x[i])
    scale = Scale.of(np.array(value), low=-1.0)
    points = CurvePoints(np.array(features), np.array(fraction), np.array(owner))
    model = CurveModel.fit(points, scale.warp(np.array(value)))
    cut = np.arange(15, 20)
    mean, sd = model.predict(CurvePoints(x[cut][:, None], np.ones(5), cut))
    truth = model.standardised(scale.warp(course[-1] - 0.3 * x[cut]))
    assert np.abs(mean - truth).max() < 0.35 and np.all(np.abs(mean - truth) < 3 * sd)


def test_at_most_so_many_points_are_kept_the_ends_first_and_some_of_the_bad():
    points = some_points(2000, 2)
    warped = np.random.default_rng(6).random(2000)
    kept = thinned(points, warped)
    assert len(kept) == len(set(kept)) == 200
    ends = np.flatnonzero(points.fraction == 1)
    best = ends[np.argsort(-warped[ends])][:150]
    assert set(best) <= set(kept) and warped[kept].min() < 0.1
    assert list(thinned(some_points(40, 2), warped[:40])) == list(range(40))


def some_tasks(n: int, d: int) -> CurvePoints:
    """Points of this study and of two others."""
    points = some_points(n, d)
    return CurvePoints(points.features, points.fraction, points.owner, np.arange(n) // 4 % 3)


def test_density_and_gradient_are_those_of_the_normal_distribution_and_its_differences():
    points, d = some_tasks(48, 3), 3
    rng = np.random.default_rng(6)
    middle, sd = prior(d, 2)
    y, theta = rng.normal(size=48), middle + 0.4 * rng.normal(size=d + 8)

    def reference(theta):
        rho = [1.0, *(1 / (1 + np.exp(-theta[d + 6 :])))]
        each = [*zip(points.features, points.fraction, points.owner, points.tasks, strict=True)]
        K = np.diag(np.exp(theta[d + 5]) * (1.32 - points.fraction) + 1e-5)
        for i, (*a, s) in enumerate(each):
            for j, (*b, t) in enumerate(each):
                alone = theta[: d + 6].copy()
                alone[d] = -np.inf if s != t else alone[d]  # no common course
                K[i, j] += one_covariance(alone, *a, *b) * (1.0 if s == t else rho[s] * rho[t])
        away = (theta - middle) / sd
        return -multivariate_normal(np.zeros(48), K).logpdf(y) - 24 * np.log(2 * np.pi) + away @ away / 2

    value, gradient = negative_log_posterior(theta, points, y)
    assert value == pytest.approx(reference(theta), abs=1e-7)
    steps = np.eye(d + 8) * 1e-5
    differences = [(reference(theta + step) - reference(theta - step)) / 2e-5 for step in steps]
    assert gradient == pytest.approx(np.array(differences), abs=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_study_that_agrees_is_believed_and_one_that_contradicts_is_unlearnt(sign):
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.random((12, 1)), rng.random((40, 1))])
    hill = -((x[:, 0] - 0.3) ** 2) + 0.01 * rng.normal(size=52)
    task = np.repeat([0, 1], [12, 40])
    values = np.where(task == 0, hill, 5 + 2 * sign * hill)  # another level, another spread
    points = CurvePoints(x, np.ones(52), np.arange(52), task)
    model = CurveModel.fit(points, values)
    rho = 1 / (1 + np.exp(-model.theta[-1]))
    assert rho > 0.7 if sign > 0 else rho < 0.3
    at = np.linspace(0, 1, 21)[:, None]
    mean, _ = model.predict(CurvePoints(at, np.ones(21), np.full(21, -1)))
    assert abs(at[mean.argmax(), 0] - 0.3) < 0.15
    own = values[task == 0]
    assert model.mean == pytest.approx(own.mean()) and model.sd > own.std(), "drawn to the other study's spread"


def threads() -> set[int]:
    """Of the libraries of linear algebra."""
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_the_model_computes_on_one_thread_and_the_limit_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[set[int]] = []
    factorised, solved = curve_model.cholesky, curve_model.solve_triangular

    def noted(function):
        return lambda *args, **kwargs: (met.append(threads()), function(*args, **kwargs))[1]

    monkeypatch.setattr(curve_model, "cholesky", noted(factorised))
    monkeypatch.setattr(curve_model, "solve_triangular", noted(solved))
    points = CurvePoints(np.linspace(0, 1, 12)[:, None], np.ones(12), np.arange(12))
    with threadpool_limits(3, user_api="blas"):
        if threads() == {1}:
            pytest.skip("the libraries of linear algebra here have one thread")
        before = threads()
        model = CurveModel.fit(points, np.linspace(0, 1, 12) ** 2)
        fitted = len(met)
        model.predict(points)
        with pytest.raises(IndexError):
            model.predict(CurvePoints(np.zeros(3), np.ones(3), np.arange(3)))
        assert threads() == before, "also after an error"
    assert len(met) > fitted > 0 and set().union(*met) == {1}
