"""When early values say so little that no trial is paused any more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.strategies.look_value import LEAST_Z, LookedRun, says_little
from bigbatch.tune.strategies.named import make_strategy
from bigbatch.tune.strategies.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.retry import RETRIES_ATTR
from helpers.lone_studies import new_study

FACTS = SearchFacts((Dimension("x", FloatDistribution(0, 1)),), 40, 20, objective=Objective("v", worst=0.0))


def runs(early: list[float], ends: list[float], group: object = None) -> list[LookedRun]:
    return [LookedRun(a, b, (group, 20)) for a, b in zip(early, ends, strict=True)]


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
    add_runs(study, against)
    strategy = make_strategy("curves", "look", replace(FACTS, open_ended=open_ended))
    trial = begun(study, {2: 0.1})
    assert strategy.look(study, trial, 1) == TrialDecision.GO_ON
    assert strategy.look(study, trial, 2) == decision


def test_a_trial_that_was_not_paused_at_its_look_is_not_paused_later() -> None:
    """Early values come to say more when it is at half; neither it pauses then, nor the repetition of such a one."""
    study = new_study()
    add_runs(study, against=True)
    add_runs(study, against=False, count=30)
    strategy = make_strategy("curves", "look", replace(FACTS, open_ended=True))
    assert strategy.look(study, begun(study, {2: 0.1}), 2) == TrialDecision.PAUSE
    let_go = begun(study, dict.fromkeys(range(1, 12), 0.1))
    assert strategy.look(study, let_go, 11) == TrialDecision.GO_ON
    again = begun(study, {2: 0.1}, {RETRIES_ATTR: let_go.number})
    assert strategy.look(study, again, 2) == TrialDecision.GO_ON
    failed_before = begun(study, {1: 0.1})
    again = begun(study, {2: 0.1}, {RETRIES_ATTR: failed_before.number})
    assert strategy.look(study, again, 2) == TrialDecision.PAUSE


def add_runs(study: optuna.Study, against: bool, count: int = 6) -> None:
    """Runs to their end, in whose order the values at the look are, or against it."""
    for i in range(count):
        early = (count - 1 - i if against else i) / 100 + 0.1
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                value=0.5 + i / 100,
                params={"x": i / count},
                distributions={"x": FloatDistribution(0, 1)},
                intermediate_values={1: 0.05, 2: early, 20: 0.5 + i / 100},
            )
        )


def begun(study: optuna.Study, values: dict[int, float], attrs: dict[str, int] | None = None) -> FrozenTrial:
    """A running trial with these values by epoch."""
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    for key, value in (attrs or {}).items():
        trial.set_user_attr(key, value)
    for epoch, reported in values.items():
        trial.report(reported, epoch)
    return study.get_trials()[trial.number]
