"""How many trials are let go at their look, because early values may say little."""

import math
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import spearmanr

from bigbatch.tune.budget.budget import Limits
from bigbatch.tune.models.look_value import LookedRun, chance_of_little, is_let_go
from bigbatch.tune.models.protocol import Dimension, SearchFacts, TrialDecision
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import CONTINUES_ATTR, GIVEN_ATTR, PAUSED_ATTR, RETRIES_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import made, new_study
from helpers.simulated_search import BATCH, BATCHES, EPOCHS, BudgetedSearch

X = {"x": FloatDistribution(0, 1)}
FACTS = SearchFacts((Dimension("x", X["x"]),), 40, 20, objective=Objective("v", worst=0.0))


def runs(early: list[float], ends: list[float], group: object = None) -> list[LookedRun]:
    return [LookedRun(a, b, group) for a, b in zip(early, ends, strict=True)]


def chance_on_a_grid(z: float, free: int) -> float:
    """Bayes' rule in 40,000 steps: a normal prior (0.6, 0.5), a normal likelihood, the part below 0.4."""
    at = np.linspace(-6, 8, 40_001)
    weight = np.exp(-(((at - 0.6) / 0.5) ** 2) / 2 - free * (at - z) ** 2 / 2)
    return float(weight[at < 0.4].sum() / weight.sum())


@pytest.mark.parametrize("seed", [0, 5, 11])
def test_the_chance_is_bayes_rule_on_fishers_z(seed: int) -> None:
    rng = np.random.default_rng(seed)
    early = rng.normal(size=5 + seed)
    ends = rng.uniform(-1, 1) * early + rng.normal(size=5 + seed)
    expected = chance_on_a_grid(math.atanh(spearmanr(early, ends)[0]), 5 + seed - 3)
    assert chance_of_little(runs(early.tolist(), ends.tolist())) == pytest.approx(expected, abs=1e-3)


def test_runs_that_do_not_compare_leave_what_is_expected_before_any_run() -> None:
    against = ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    alone = [run._replace(group=i) for i, run in enumerate(runs(*against))]
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


@pytest.mark.parametrize("open_ended", [True, False])
def test_with_a_budget_alone_what_was_given_is_the_first_to_go_on(open_ended: bool) -> None:
    """At the twelfth slot: a budget may end at any time. A number of trials leaves it until all have been tried."""
    strategy, study = make_strategy("random", "look", replace(FACTS, open_ended=open_ended)), new_study()
    for i in range(11):
        given = {GIVEN_ATTR: {"epochs": 20}} if i == 3 else {}
        values = {1: 0.1, 2: 0.1 + i / 100}
        study.add_trial(made({"x": i / 11}, X, values, TrialState.PRUNED, **{PAUSED_ATTR: 2}, **given))
    found = strategy.to_continue(study)
    assert found is not None and found.number == (3 if open_ended else 10)


def test_a_budget_alone_pays_for_whole_runs_beyond_the_number_of_trials_that_was_guessed(tmp_path) -> None:
    """40 runs' time for each of two slots. Once, after the guess all new trials were paused and few went on."""
    run_s = EPOCHS * 10.0 + 13
    limits = Limits(device_s=2 * 40 * run_s)
    trials = BudgetedSearch(tmp_path / "s", limits, None, stopping="look", guess=8, open_ended=True).run().trials
    finished = [t for t in trials if t.state == TrialState.COMPLETE]
    assert len(finished) >= 40 and sum(CONTINUES_ATTR in t.user_attrs for t in finished) >= 10
    for batch in BATCHES:
        assert sum(t.params[BATCH] == batch for t in finished) >= 10


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
        study.add_trial(made({"x": i / count}, X, {1: 0.05, 2: early, 20: 0.5 + i / 100}))


def begun(study: optuna.Study, values: dict[int, float], attrs: dict[str, int] | None = None) -> FrozenTrial:
    """A running trial with these values by epoch."""
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    for key, value in (attrs or {}).items():
        trial.set_user_attr(key, value)
    for epoch, reported in values.items():
        trial.report(reported, epoch)
    return study.get_trials()[trial.number]
