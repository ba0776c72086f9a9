"""When early values say so little that no trial is paused any more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.strategies.look_value import LEAST_Z, Looked, says_little
from bigbatch.tune.strategies.named import make_strategy
from bigbatch.tune.strategies.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.study.objective import Objective
from helpers.lone_studies import new_study

FACTS = SearchFacts((Dimension("x", FloatDistribution(0, 1)),), 40, 20, objective=Objective("v", worst=0.0))


def runs(early: list[float], ends: list[float], group: object = None) -> list[Looked]:
    return [Looked(a, b, (group, 20)) for a, b in zip(early, ends, strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_fishers_bound_on_spearmans_correlation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    early = rng.normal(size=12)
    ends = rng.uniform(-1, 1) * early + rng.normal(size=12)
    bound = math.atanh(spearmanr(early, ends)[0]) + 1 / math.sqrt(12 - 3)
    assert says_little(runs(early.tolist(), ends.tolist())) == (bound < LEAST_Z)


def test_few_runs_equal_runs_and_runs_that_do_not_compare_say_nothing() -> None:
    against = ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert says_little(runs(*against)) and not says_little(runs(against[0][:5], against[1][:5]))
    assert not says_little(runs([0.3] * 9, against[1] + [0.0] * 3))
    assert not says_little([run for i, run in enumerate(runs(*against)) for run in [run._replace(group=(i, 20))]])


@pytest.mark.parametrize(("open_ended", "against", "decision"), [
    (True, True, TrialDecision.GO_ON),
    (False, True, TrialDecision.PAUSE),
    (True, False, TrialDecision.PAUSE),
])  # fmt: skip
def test_with_a_budget_alone_trials_are_not_paused_once_early_values_have_said_little(open_ended, against, decision):
    """Six runs to their end, in whose order the early values are, or against it; then a new trial comes to its look."""
    study = new_study()
    for i in range(6):
        early = (5 - i if against else i) / 100 + 0.1
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                value=0.5 + i / 100,
                params={"x": i / 6},
                distributions={"x": FloatDistribution(0, 1)},
                intermediate_values={1: 0.05, 2: early, 20: 0.5 + i / 100},
            )
        )
    strategy = make_strategy("curves", "look", replace(FACTS, open_ended=open_ended))
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.report(0.1, 2)
    assert strategy.look(study, study.trials[-1], 1) == TrialDecision.GO_ON
    assert strategy.look(study, study.trials[-1], 2) == decision
