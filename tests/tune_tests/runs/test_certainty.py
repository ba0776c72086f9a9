"""What the findings claim to be better than what: how often the claim is wrong, by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, fisher_exact

from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.reported import Examples, by_choice, clearly_worse, clopper_pearson, differ_clearly


def counts(rng: np.random.Generator, accuracy: float, trials: int, images: int, shared: bool) -> np.ndarray:
    """Right answers of equally good trials; ``shared``: on images of which some are harder for all."""
    if not shared:
        return rng.binomial(images, accuracy, trials)
    ease = rng.beta(2 * accuracy, 2 * (1 - accuracy), images)
    return (rng.random((trials, images)) < ease).sum(1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("accuracy", "trials"), [(0.5, 2), (0.76, 8), (0.98, 8), (0.9, 30)])
def test_of_equally_good_trials_one_is_called_worse_in_at_most_5_percent_of_studies(accuracy, trials, shared):
    rng, studies, wrong, plain = np.random.default_rng(0), 1500, 0, 0
    for _ in range(studies):
        found = np.sort(counts(rng, accuracy, trials, 360, shared))[::-1]
        worst = found[-1] / 360  # if any is called worse, it is
        wrong += differ_clearly(int(found[0]), int(found[-1]), 360, 0.05 / (trials * (trials - 1) / 2))
        error = np.sqrt(worst * (1 - worst) / 360 + 1e-9)
        plain += found[0] / 360 - worst > error * np.sqrt(2)
    assert binomtest(wrong, studies, 0.05, alternative="greater").pvalue > 0.01, wrong / studies
    assert trials == 2 or plain / studies > 0.5, "one standard error, as was said before, is wrong more often than not"


def test_the_verdict_uses_that_level_and_large_differences_are_found():
    values = [0.95, 0.94, 0.80, 0.31]
    assert clearly_worse(values, 2000) == [False, True, True]
    assert not any(clearly_worse([0.986, 0.981, 0.972], 360))
    rng = np.random.default_rng(1)
    for _ in range(200):
        drawn = sorted(rng.binomial(10_000, [0.76, 0.72, 0.72, 0.72]) / 10_000, reverse=True)
        assert all(clearly_worse(drawn, 10_000))


@pytest.mark.parametrize(("a", "b"), [(355, 342), (360, 351), (180, 150), (10, 1), (300, 300)])
def test_the_test_is_scipys_fisher_exact_doubled(a, b):
    tail = fisher_exact([[a, 360 - a], [b, 360 - b]], alternative="greater").pvalue
    assert differ_clearly(a, b, 360, 2 * tail * 1.0001) and not differ_clearly(a, b, 360, 2 * tail * 0.9999)
    assert differ_clearly(b, a, 360, 2 * tail * 1.0001)


def test_the_range_of_a_chosen_best_holds_in_95_percent_of_studies():
    """Against the truth of the chosen one; scipy's interval is the reference for one alone."""
    rng, studies, missed = np.random.default_rng(2), 1500, 0
    truth = np.array([0.90, 0.905, 0.91, 0.91, 0.91, 0.91])
    for _ in range(studies):
        drawn = rng.binomial(360, truth)
        best = int(np.argmax(drawn))
        found = by_choice(drawn[best] / 360, None, len(truth), Examples(360), Objective(worst=0.1))
        assert found.low is not None and found.high is not None
        missed += not found.low <= truth[best] <= found.high
    assert missed / studies < 0.05
    reference = binomtest(355, 360).proportion_ci(0.95, method="exact")
    assert clopper_pearson(355, 360, 0.05) == pytest.approx((reference.low, reference.high))
    assert clopper_pearson(360, 360, 0.05)[1] == 1.0 and clopper_pearson(0, 360, 0.05)[0] == 0.0
