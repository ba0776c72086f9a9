"""The line about early values: against scipy's rank correlation, and when it is silent."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.console.outcome import look_findings
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.runs.run import CONFIRMS_ATTR

BATCHES = CategoricalDistribution([128, 512])


def facts(frontier: str | None = None) -> SearchFacts:
    dimensions = (Dimension("x", FloatDistribution(0, 1)), Dimension("batch", BATCHES))
    return SearchFacts(dimensions, trials=40, max_epochs=20, frontier=frontier)


def run(early: float, end: float, batch: int = 128, epochs: int = 20, **attrs: object) -> FrozenTrial:
    """A run to its end that had ``early`` at its look, after a tenth."""
    return create_trial(
        state=TrialState.COMPLETE,
        value=end,
        params={"x": 0.5, "batch": batch},
        distributions={"x": FloatDistribution(0, 1), "batch": BATCHES},
        intermediate_values={1: 0.1, epochs // 10: early, epochs: end},
        user_attrs={"config": {"epochs": epochs, "schedule": {"warmup_epochs": 0.0}}, **attrs},
    )


def test_the_correlation_is_spearmans_and_the_advice_follows_from_it() -> None:
    rng = np.random.default_rng(0)
    early = rng.uniform(0.2, 0.4, 12)
    for end, words in ((early + 0.3, "told the ends"), (0.9 - early, "said little of the ends")):
        end = end + rng.normal(0, 0.02, 12)
        (line,) = look_findings("look", facts(), [run(a, b) for a, b in zip(early, end, strict=True)])
        assert words in line and f"{spearmanr(early, end)[0]:+.2f} over 12 finished runs" in line
        assert ("--stopping none" in line) == ("little" in words)


def test_runs_compare_within_their_batch_and_at_the_same_part_of_their_length() -> None:
    """At each batch early values rank the ends; all together, they rank them the wrong way."""
    fine = [(0.30 + i / 100, 0.60 + i / 100) for i in range(6)]
    low = [(0.50 + i / 100, 0.40 + i / 100) for i in range(6)]
    batches = [run(a, b) for a, b in fine] + [run(a, b, batch=512) for a, b in low]
    assert "+1.00 over 12" in look_findings("look", facts("batch"), batches)[0]
    assert "said little" in look_findings("look", facts(), batches)[0]
    lengths = [run(0.3 + i / 100, 0.6 + i / 100, epochs=10 + 10 * i) for i in range(8)]
    assert "+1.00 over 8" in look_findings("look", facts(), lengths)[0], "a search that also chooses the epochs"


@pytest.mark.parametrize("stopping", ["asha", "none"])
def test_it_is_silent_without_a_look_with_few_runs_and_about_confirmations(stopping: str) -> None:
    runs = [run(0.2 + i / 50, 0.5 + i / 50) for i in range(8)]
    assert look_findings("look", facts(), runs) and not look_findings(stopping, facts(), runs)
    assert not look_findings("look", facts(), runs[:-1])
    assert not look_findings("look", facts(), [*runs[:-1], run(0.9, 0.9, **{CONFIRMS_ATTR: 0})])
    assert not look_findings("look", facts(), [run(0.3, 0.5)] * 9), "all alike: there is no order"


def test_with_a_budget_alone_it_says_how_many_are_not_paused() -> None:
    budget_alone = replace(facts(), open_ended=True)
    runs = [run(0.4 - i / 50, 0.5 + i / 50) for i in range(8)]
    (line,) = look_findings("look", budget_alone, runs)
    part = int(re.search(r"-1.00 over 8 finished runs. Of new trials (\d+)% run without a pause", line)[1])
    assert part > 90 and "--stopping none" not in line
    fine = [run(0.2 + i / 50, 0.5 + i / 50) for i in range(8)]
    (line,) = look_findings("look", budget_alone, fine)
    assert "told the ends" in line and int(re.search(r"(\d+)% run without", line)[1]) < 10
    assert "without a pause" not in look_findings("look", facts(), runs)[0]
    rng = np.random.default_rng(0)
    for _ in range(40):  # whatever the correlation, the words and the part that is let go agree
        runs_of_any = [run(*pair) for pair in rng.uniform(0.3, 0.6, (12, 2))]
        (line,) = look_findings("look", budget_alone, runs_of_any)
        assert ("said little" in line) == (int(re.search(r"(\d+)% run without", line)[1]) >= 50)
    assert not look_findings("look", budget_alone, runs[:-1])
