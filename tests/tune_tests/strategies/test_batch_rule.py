"""The line through good runs at several batches: against the posterior by matrices, and against laws in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.strategies.batch_rule import RATE, fit_line, goodness, log_over_rule, rate_at

IMAGES = Workload("cifar10", train_size=50_000, num_classes=10, image_size=32, model="resnet18", epochs=300)
TARGET = 4096


def config(optimizer: str, batch: int, rate: float, **more: object) -> TrainConfig:
    return IMAGES.config({"optimizer.name": optimizer, "batch.global_size": batch, "optimizer.peak_lr": rate, **more})


def test_the_line_is_the_posterior_of_a_linear_model() -> None:
    rng = np.random.default_rng(0)
    batches = [64, 64, 128, 512, 512, 1024]
    ys, weights = rng.normal(0, 1, 6), rng.uniform(0.1, 1, 6)
    line = fit_line(batches, list(ys), list(weights), RATE)
    features = np.stack([np.ones(6), np.log(batches) - line.middle], axis=1)
    precision = features.T @ (weights[:, None] * features) / RATE.scatter**2 + np.diag([1e-12, RATE.slope_sd**-2])
    mean = np.linalg.solve(precision, features.T @ (weights * ys) / RATE.scatter**2)
    at = np.array([1.0, math.log(TARGET) - line.middle])
    assert line.at(TARGET) == pytest.approx(at @ mean, abs=1e-9)
    assert line.sd_at(TARGET) == pytest.approx(math.sqrt(at @ np.linalg.inv(precision) @ at), rel=1e-9)


@pytest.mark.parametrize(("optimizer", "exponent"), [("sgd", 0.3), ("lars", 0.5), ("lamb", 0.8), ("sgd", 1.0)])
def test_a_law_is_found_from_many_noisy_runs(optimizer: str, exponent: float) -> None:
    """Best rate = c·B^exponent; a run at another rate loses the square of the logarithm's distance, and has noise."""
    rng = np.random.default_rng(1)
    batches = [b for b in (32, 64, 128, 256, 512) for _ in range(200)]
    best = [0.3 * (b / 256) ** exponent for b in batches]
    rates = [rate * math.exp(rng.uniform(-3, 3)) for rate in best]
    gains = [0.9 - 0.02 * math.log(r / b) ** 2 + rng.normal(0, 0.003) for r, b in zip(rates, best, strict=True)]
    eta = {"optimizer.trust_coefficient": 0.004} if optimizer == "lars" else {}
    ys = [log_over_rule(config(optimizer, b, r, **eta), IMAGES) for b, r in zip(batches, rates, strict=True)]
    line = fit_line(batches, ys, goodness(batches, gains), RATE)
    predicted = rate_at(config(optimizer, TARGET, 1.0, **eta), IMAGES, line.at(TARGET))
    law = 0.3 * (TARGET / 256) ** exponent
    assert 1 / 1.5 < predicted / law < 1.5, "8 times the largest batch seen"


@pytest.mark.parametrize(("optimizer", "times"), [("sgd", 4.0), ("lamb", 2.0), ("lars", 4**0.39)])
def test_runs_of_one_batch_leave_the_published_rule_as_it_is(optimizer: str, times: float) -> None:
    """Linear for SGD (Goyal), square root for LAMB, B^0.39 for LARS (MLPerf)."""
    y = log_over_rule(config(optimizer, 32, 0.2), IMAGES)
    line = fit_line([32], [y], [1.0], RATE)
    assert rate_at(config(optimizer, 128, 1.0), IMAGES, line.at(128)) == pytest.approx(0.2 * times)


def test_the_rate_of_another_momentum_has_the_same_noise() -> None:
    """lr / (1 − momentum) is what counts (Smith et al. 2018)."""
    y = log_over_rule(config("sgd", 64, 0.1, **{"optimizer.momentum": 0.9}), IMAGES)
    assert rate_at(config("sgd", 64, 1.0, **{"optimizer.momentum": 0.95}), IMAGES, y) == pytest.approx(0.05)


def test_the_more_runs_there_are_and_the_nearer_they_lie_the_surer_the_line_is() -> None:
    few, many = (fit_line([64, 256] * n, [0.0, 0.0] * n, [1.0, 1.0] * n, RATE) for n in (1, 10))
    assert many.sd_at(1024) < few.sd_at(1024) < few.sd_at(8192)


def test_runs_count_by_their_distance_from_the_best_of_their_own_batch() -> None:
    weights = goodness([64, 64, 64, 256, 256], [0.9, 0.8, 0.1, 0.5, 0.4])
    assert weights[0] == weights[3] == 1.0
    assert weights[1] == pytest.approx(weights[4]), "0.1 behind, at either batch"
    assert weights[2] < 0.01
    assert goodness([64, 256], [0.3, 0.3]) == [1.0, 1.0]
