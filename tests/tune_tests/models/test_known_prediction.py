"""What another study predicts, against a known landscape and SciPy's rank correlation; the words about it."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.console.outcome import known_findings
from bigbatch.tune.models.known_curves import known_prediction, rank_correlation
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.runs.knowledge import LABEL, KnownStudy, KnownTrial

DISTRIBUTION = FloatDistribution(0.0, 1.0)
FACTS = SearchFacts((Dimension("x", DISTRIBUTION), Dimension("y", DISTRIBUTION)), trials=20, max_epochs=4)


def hill(x: float, y: float) -> float:
    """Highest at (0.3, 0.6)."""
    return 0.9 - (x - 0.3) ** 2 - (y - 0.6) ** 2


def known(sign: float = 1.0, name: str = "runs/old") -> KnownStudy:
    """Forty trials in two batches. The larger one is worse by more than the hill is high."""
    places = np.random.default_rng(1).random((40, 2))
    return KnownStudy(
        name,
        tuple(
            KnownTrial(i, {"x": x, "y": y}, {4: sign * hill(x, y) - 2.0 * (i % 2)}, 4, group=64 * (1 + i % 2))
            for i, (x, y) in enumerate(places.tolist())
        ),
    )


def finished(number: int, x: float, y: float, label: str | None = None) -> FrozenTrial:
    """A trial of this search."""
    trial = create_trial(
        state=TrialState.COMPLETE,
        value=hill(x, y),
        params={"x": x, "y": y},
        distributions={"x": DISTRIBUTION, "y": DISTRIBUTION},
        user_attrs={"enqueued": label} if label else {},
    )
    trial.number = number
    return trial


def test_a_study_of_two_batches_predicts_the_hill_that_both_have():
    asked = [{"x": x, "y": y} for x, y in np.random.default_rng(2).random((60, 2)).tolist()]
    predicted = known_prediction(known(), FACTS, asked)
    truth = [hill(one["x"], one["y"]) for one in asked]
    assert spearmanr(predicted, truth).statistic > 0.85
    assert spearmanr(known_prediction(known(-1.0), FACTS, asked), truth).statistic < -0.85
    assert known_prediction(KnownStudy("runs/nothing", ()), FACTS, asked).tolist() == [0.0] * 60


def test_the_rank_correlation_is_spearmans():
    rng = np.random.default_rng(3)
    one = rng.integers(0, 6, 30).astype(float)  # with equal values
    other = one + rng.normal(0, 2, 30)
    assert rank_correlation(one.tolist(), other.tolist(), [None] * 30) == pytest.approx(spearmanr(one, other).statistic)
    shifted = np.concatenate([other, other - 100])  # batches do not compare
    both = rank_correlation([*one, *one], shifted.tolist(), [64] * 30 + [128] * 30)
    assert both == pytest.approx(spearmanr(one, other).statistic)
    assert rank_correlation(one[:4].tolist(), other[:4].tolist(), [None] * 4) is None
    assert rank_correlation([1.0] * 6, other[:6].tolist(), [None] * 6) is None


def test_the_findings_say_what_was_predicted_and_what_came_out():
    places = np.random.default_rng(4).random((9, 2)).tolist()
    trials = [finished(0, 0.3, 0.6, LABEL + "runs/old trial 7"), finished(1, 1.0, 0.0, LABEL + "runs/old trial 3")]
    trials += [finished(2 + i, x, y) for i, (x, y) in enumerate(places)]
    good, bad, first = known_findings((known(), known(-1.0, "runs/other")), FACTS, trials)
    assert good.startswith("runs/old predicted this search well: rank correlation +0.") and "over 11 finished" in good
    assert bad.startswith("runs/other predicted this search not at all: rank correlation -0.")
    assert first == "Of what they suggested to try first: trial 0 is 1 of 11, trial 1 is 11 of 11."
    assert "3 finished trials are too few" in known_findings((known(),), FACTS, trials[:3])[0]
    assert known_findings((), FACTS, trials) == [] == known_findings((known(),), FACTS, [])
