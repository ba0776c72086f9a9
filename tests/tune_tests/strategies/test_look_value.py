"""How many trials are let go at their look, because early values may say little."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.strategies.look_value import LookedRun, chance_of_little, is_let_go
from bigbatch.tune.strategies.named import make_strategy
from bigbatch.tune.strategies.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.retry import RETRIES_ATTR
from helpers.lone_studies import new_study

FACTS = SearchFacts((Dimension("x", FloatDistribution(0, 1)),), 40, 20, objective=Objective("v", worst=0.0))


def runs(early: list[float], ends: list[float], group: object = None) -> list[LookedRun]:
    return [LookedRun(a, b, (group, 20)) for a, b in zip(early, ends, strict=True)]


def chance_on_a_grid(z: float, free: int) -> float:
    """Bayes' rule in 40,000 steps: a normal prior (0.6, 0.5), a normal likelihood, the part below 0.4."""
    at = np.linspace(-6, 8, 40_001)
    weight = np.exp(-(((at - 0.6) / 0.5) ** 2) / 2 - free * (at - z) ** 2 / 2)
    return float(weight[at < 0.4].sum() / weight.sum())


@pytest.mark.parametrize("seed", range(12))
def test_the_chance_is_bayes_rule_on_fishers_z(seed: int) -> None:
    rng = np.random.default_rng(seed)
    early = rng.normal(size=5 + seed)
    ends = rng.uniform(-1, 1) * early + rng.normal(size=5 + seed)
    expected = chance_on_a_grid(math.atanh(spearmanr(early, ends)[0]), 5 + seed - 3)
    assert chance_of_little(runs(early.tolist(), ends.tolist())) == pytest.approx(expected, abs=1e-3)


def test_runs_that_do_not_compare_leave_what_is_expected_before_any_run() -> None:
    against = ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    alone = [run._replace(group=(i, 20)) for i, run in enumerate(runs(*against))]
    for nothing in ([], runs(against[0][:2], against[1][:2]), runs([0.3] * 9, against[1] + [0.0] * 3), alone):
        assert chance_of_little(nothing) == pytest.approx(0.3446, abs=1e-4), "of z < -0.4 in a table of the normal"
    assert chance_of_little(runs(*against)) > 0.9 and chance_of_little(runs(against[0], against[0])) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 2**31])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.34, 0.9, 1.0])
def test_as_large_a_part_of_any_ten_or_more_trials_is_let_go(chance: float, seed: int) -> None:
    for first in range(200):
        for count in (10, 40):
            let_go = sum(is_let_go(chance, number, seed) for number in range(first, first + count))
            assert abs(let_go - chance * count) < 2


@pytest.mark.parametrize("against", [True, False])
@pytest.mark.parametrize("open_ended", [True, False])
def test_with_a_budget_alone_trials_are_let_go_as_early_values_have_said_little(open_ended, against) -> None:
    """Nine runs to their end, in whose order the early values are, or against it; then thirty come to their look."""
    study = new_study()
    add_runs(study, against, count=9)
    strategy = make_strategy("curves", "look", replace(FACTS, open_ended=open_ended))
    decisions = []
    for _ in range(30):
        trial = begun(study, {2: 0.1})
        assert strategy.look(study, trial, 1) == TrialDecision.GO_ON
        decisions.append(strategy.look(study, trial, 2))
    let_go = decisions.count(TrialDecision.GO_ON)
    assert let_go + decisions.count(TrialDecision.PAUSE) == 30
    assert let_go >= 27 if open_ended and against else let_go <= 1 if open_ended else let_go == 0


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
