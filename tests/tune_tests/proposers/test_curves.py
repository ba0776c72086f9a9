"""The strategy ``curves``: what it proposes for studies whose landscape the test knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from scipy.stats import spearmanr

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.curve_model import CurvePoints
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.models.unit_space import UnitSpace, position
from bigbatch.tune.proposers.curves import CurvesSampler, startup_trials
from bigbatch.tune.proposers.samplers import PerTrialSampler
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import CONTINUES_ATTR, DIVERGED_ATTR, PAUSED_ATTR, RETRIES_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.as_they_are import curves_of
from helpers.lone_studies import new_study

EPOCHS = 8
DIMENSIONS = (
    Dimension("one_minus_momentum", FloatDistribution(0.03, 0.3, log=True), {"optimizer": ("lars", "sgd")}),
    Dimension("optimizer", CategoricalDistribution(("lars", "lamb", "sgd"))),
    Dimension("batch", CategoricalDistribution((256, 1024, 4096))),
    Dimension("lr", FloatDistribution(1e-3, 10.0, log=True)),
    Dimension("one_minus_beta1", FloatDistribution(0.05, 0.3, log=True), {"optimizer": ("lamb",)}),
    Dimension("layers", IntDistribution(1, 5)),
)
FACTS = SearchFacts(DIMENSIONS, trials=60, max_epochs=EPOCHS, slots=4, seed=1, objective=Objective("v", worst=0.1))


def suggest(trial: optuna.Trial, names: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """As a space does: a conditional parameter only where its condition holds."""
    params: dict[str, Any] = {}
    for name in ("optimizer", "batch", "lr", "layers"):
        params[name] = trial._suggest(name, names[name])
    other = "one_minus_beta1" if params["optimizer"] == "lamb" else "one_minus_momentum"
    params[other] = trial._suggest(other, names[other])
    return params


NAMES = {d.name: d.distribution for d in DIMENSIONS}


def loss(params: Mapping[str, Any]) -> float:
    """0 at lr 0.3 · batch / 1,024 with sgd, three layers."""
    away = math.log10(params["lr"] / (0.3 * params["batch"] / 1024))
    return away**2 + 0.3 * (params["optimizer"] != "sgd") + 0.1 * abs(params["layers"] - 3)


def search(strategy: str, seed: int, trials: int = 40, facts: SearchFacts = FACTS) -> list[float]:
    """The losses of a search, one trial after the other; above 10 × the best rate a run diverges."""
    study = new_study()
    facts = SearchFacts(facts.dimensions, facts.trials, facts.max_epochs, 1, seed, facts.objective)
    losses = []
    for _ in range(trials):
        study.sampler = PerTrialSampler(make_strategy(strategy, "none", facts).sampler)
        trial = study.ask()
        params = suggest(trial, NAMES)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        found = loss(params)
        losses.append(found)
        if params["lr"] > 3 * params["batch"] / 1024:
            trial.set_user_attr(DIVERGED_ATTR, True)
            study.tell(trial, state=TrialState.FAIL)
            continue
        for epoch in range(1, EPOCHS + 1):
            trial.report(0.1 + 0.8 * math.exp(-found) * epoch / EPOCHS, epoch)
        study.tell(trial, 0.1 + 0.8 * math.exp(-found))
    return losses


def test_it_comes_nearer_to_the_best_than_random_search_and_diverges_less_often_with_time():
    ours = [search("curves", seed) for seed in range(3)]
    random = [search("random", seed) for seed in range(3)]
    assert np.mean([min(losses) for losses in ours]) < 0.4 * np.mean([min(losses) for losses in random])
    late, early = [np.median([losses[part] for losses in ours]) for part in (slice(-15, None), slice(0, 10))]
    assert late < 0.4 * np.median(random) and late < 0.5 * early


def filled(facts: SearchFacts = FACTS, trials: int = 16) -> optuna.Study:
    """A study of finished quasi-random trials."""
    study = new_study()
    study.sampler = PerTrialSampler(make_strategy("qmc", "none", facts).sampler)
    for _ in range(trials):
        trial = study.ask()
        value = 0.1 + 0.8 * math.exp(-loss(suggest(trial, NAMES)))
        trial.set_user_attr("config", {"epochs": EPOCHS})
        for epoch in range(1, EPOCHS + 1):
            trial.report(value * epoch / EPOCHS, epoch)
        study.tell(trial, value)
    return study


def proposal(study: optuna.Study, number: int, fixed: Mapping[str, object], facts: SearchFacts = FACTS) -> dict:
    asked = optuna.trial.create_trial(state=TrialState.RUNNING)
    asked.number = number
    return CurvesSampler(facts, number).propose(study, asked, fixed)


def test_a_proposal_depends_on_study_seed_and_number_alone():
    one, other = filled(), filled()
    assert proposal(one, 16, {}) == proposal(other, 16, {})
    assert proposal(one, 16, {}) != proposal(one, 17, {}), "trials that start at the same time differ"
    facts = SearchFacts(DIMENSIONS, 60, EPOCHS, 4, 2, FACTS.objective)
    assert proposal(one, 16, {}) != proposal(one, 16, {}, facts)


@pytest.mark.parametrize("number", [2, 20])
def test_fixed_values_stay_and_conditions_hold(number):
    study = filled()
    for fixed in ({"batch": 4096}, {"optimizer": "lamb"}, {"optimizer": "sgd", "lr": 0.01}):
        found = proposal(study, number, fixed)
        assert fixed.items() <= found.items()
        assert ("one_minus_beta1" in found) == (found["optimizer"] == "lamb")
        assert ("one_minus_momentum" in found) == (found["optimizer"] != "lamb")
        assert all(NAMES[n]._contains(NAMES[n].to_internal_repr(v)) for n, v in found.items())


def test_what_an_enqueued_trial_leaves_open_is_proposed_to_go_with_it():
    study = filled(trials=30)
    study.sampler = PerTrialSampler(make_strategy("curves", "none", FACTS).sampler)
    rates = {}
    for batch in (256, 4096):
        study.enqueue_trial({"batch": batch})
        trial = study.ask()
        assert suggest(trial, NAMES)["batch"] == batch
        rates[batch] = trial.params["lr"]
    assert rates[4096] > rates[256], "the best rate is proportional to the batch"


def test_improvement_is_measured_within_the_frontiers_value():
    """At batch 4096 all is worse. If its own best were not the bar, no candidate would be likely to pass it, and the
    most uncertain one would be taken; so what is proposed there is near the best of its own."""
    facts = SearchFacts(DIMENSIONS, 60, EPOCHS, 4, 1, FACTS.objective, frontier="batch")
    study = new_study()
    rng = np.random.default_rng(0)
    for n in range(40):
        batch = (256, 4096)[n % 2]
        params: dict[str, Any] = {
            "optimizer": "sgd",
            "batch": batch,
            "lr": float(10 ** rng.uniform(-3, 1)),
            "layers": 3,
        }
        params["one_minus_momentum"] = 0.1
        study.enqueue_trial(params)
        trial = study.ask()
        suggest(trial, NAMES)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        value = (0.95 if batch == 256 else 0.4) - 0.1 * math.log10(params["lr"] / 0.1) ** 2
        trial.report(value, EPOCHS)
        study.tell(trial, value)
    away = [abs(math.log10(proposal(study, 40 + k, {"batch": 4096}, facts)["lr"] / 0.1)) for k in range(8)]
    assert np.median(away) < 0.6


def test_a_pause_and_its_continuation_are_one_curve_and_other_failures_say_nothing():
    study = new_study()
    paused = study.ask()
    paused.report(0.2, 1)
    paused.set_user_attr("config", {"epochs": EPOCHS})
    paused.set_user_attr(PAUSED_ATTR, 1)
    study.tell(paused, state=TrialState.PRUNED)
    study.enqueue_trial({}, user_attrs={CONTINUES_ATTR: 0})
    on = study.ask()
    on.report(0.3, 2)
    lost = study.ask()
    lost.report(0.9, 1)
    study.tell(lost, state=TrialState.FAIL)
    study.enqueue_trial({}, user_attrs={RETRIES_ATTR: lost.number})
    retry = study.ask()
    retry.report(0.8, 1)
    (one, other) = curves_of(study.get_trials(deepcopy=False), FACTS)
    assert one.gains == {1: 0.2, 2: 0.3} and one.epochs == EPOCHS
    assert other.gains == {1: 0.8} and other.number == lost.number


def test_startup_is_short_in_a_short_search_and_covers_the_slots_in_a_long_one():
    def of(trials, slots):
        return startup_trials(SearchFacts((), trials, 1, slots))

    assert [of(6, 1), of(24, 1), of(60, 1), of(60, 12), of(600, 64)] == [4, 8, 10, 12, 16]
    assert startup_trials(SearchFacts((), 6, 1, 12, open_ended=True)) == 12, "with a budget alone 6 is a guess"


@pytest.mark.parametrize("distribution", [*NAMES.values(), CategoricalDistribution((0, 1, 5))])
def test_a_coordinate_says_where_a_value_is(distribution):
    space = UnitSpace([Dimension("x", distribution)])
    rng = np.random.default_rng(0)
    values: list[Any] = [space.sample(rng, {})["x"] for _ in range(200)]
    encoded = np.array([space.encode({"x": v}) for v in values])
    assert encoded.min() >= 0 and encoded.max() <= 1
    if isinstance(distribution, CategoricalDistribution) and isinstance(distribution.choices[0], str):
        assert set(map(tuple, encoded)) == {(0.7, 0, 0), (0, 0.7, 0), (0, 0, 0.7)}
    else:
        assert list(np.argsort(encoded[:, 0], kind="stable")) == list(np.argsort(values, kind="stable"))
    near = [space.neighbour(rng, {"x": values[0]}, {})["x"] for _ in range(50)]
    assert all(distribution._contains(distribution.to_internal_repr(v)) for v in near)


def test_a_logarithmic_range_and_choices_that_are_numbers_are_placed_by_their_logarithm():
    assert position(0.1, FloatDistribution(0.01, 1.0, log=True)) == pytest.approx(0.5)
    assert position(1024, CategoricalDistribution((256, 1024, 4096))) == pytest.approx(0.5)
    assert position(1, CategoricalDistribution((0, 1, 5))) == pytest.approx(0.2)


@pytest.mark.parametrize("odd", ["high first losses", "one run at 1e4", "one run that diverged"])
def test_a_loss_without_a_known_worst_value_is_learned(odd: str) -> None:
    """Nobody knows what a diverged run is worth. The best runs differ by 1 to 3.5, beside values of ten thousand."""
    dims = (Dimension("lr", FloatDistribution(1e-3, 10, log=True)), Dimension("wd", FloatDistribution(0, 1)))
    facts = SearchFacts(dims, 100, 16, objective=Objective("val_mse", "minimize", math.nan))

    def end(params: dict[str, float]) -> float:
        return 1 + 0.5 * (math.log10(params["lr"]) + 1) ** 2 + 0.8 * (params["wd"] - 0.3) ** 2

    rng = np.random.default_rng(1)

    def drawn() -> dict[str, float]:
        return {"lr": 10 ** float(rng.uniform(-3, 1)), "wd": float(rng.random())}

    trials = []
    for number in range(30):
        params = drawn()
        start = 1e4 if odd == "high first losses" else 5.0
        values = {e: end(params) * (start / end(params)) ** math.exp(-6 * (e - 1) / 15) for e in range(1, 17)}
        if number == 7 and odd == "one run at 1e4":
            values = dict.fromkeys(values, 1e4)
        lost = number == 7 and odd == "one run that diverged"
        trials.append(
            create_trial(
                params=params,
                distributions={d.name: d.distribution for d in dims},
                state=TrialState.FAIL if lost else TrialState.COMPLETE,
                value=None if lost else values[16],
                intermediate_values={} if lost else values,
                user_attrs={"config": {"epochs": 16}, **({"diverged": True} if lost else {})},
            )
        )
        trials[-1].number = number
    encoder = CurveEncoder(facts)
    learned = encoder.learn_all(trials)
    assert learned is not None
    asked = [drawn() for _ in range(200)]
    features = np.array([encoder.space.encode(params) for params in asked])
    mean, _ = learned.model.predict(CurvePoints(features, np.ones(200), np.full(200, -1)))
    assert spearmanr(mean, [-end(params) for params in asked]).statistic > 0.5
    assert end(asked[int(mean.argmax())]) < min(map(end, asked)) + 0.2


@pytest.mark.parametrize("other", [False, True])
def test_what_was_tried_at_another_batch_is_no_copy(other: bool) -> None:
    """Twenty runs in a narrow range of rates, all at one batch. The same rates at another batch are new."""
    dims = (
        Dimension("batch", CategoricalDistribution((256, 4096))),
        Dimension("lr", FloatDistribution(1e-3, 10, log=True)),
    )
    facts = SearchFacts(dims, 60, EPOCHS, seed=1, objective=FACTS.objective, frontier="batch")
    trials = []
    for number in range(30):
        rate = 10.0 ** (-3 + 4 * number / 29)
        value = 0.9 - 0.1 * math.log10(rate / 0.1) ** 2
        params = {"batch": 256, "lr": rate}
        trials.append(
            create_trial(
                params=params,
                distributions={d.name: d.distribution for d in dims},
                value=value,
                intermediate_values={EPOCHS: value},
                user_attrs={"config": {"epochs": EPOCHS}},
            )
        )
        trials[-1].number = number
    sampler = CurvesSampler(facts, 30)
    study = new_study()
    study.add_trials(trials)
    learned = sampler._encoder.learn(study)
    assert learned is not None
    asked = [{"batch": 4096 if other else 256, "lr": rate} for rate in (0.05, 0.1, 0.2)]
    features = np.array([sampler._space.encode(params) for params in asked])
    assert (sampler._repetition(learned, asked, features) > 0).tolist() == [not other] * 3


def test_where_only_bad_configurations_are_new_it_goes_on_between_those_that_were_tried() -> None:
    """One parameter, whose best value lies in a hundredth of its range."""
    dims = (Dimension("lr", FloatDistribution(1e-3, 10, log=True)),)
    facts = SearchFacts(dims, 40, EPOCHS, seed=0, objective=FACTS.objective)
    study, away = new_study(), []
    for _ in range(40):
        study.sampler = PerTrialSampler(make_strategy("curves", "none", facts).sampler)
        trial = study.ask()
        rate = trial._suggest("lr", dims[0].distribution)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        away.append(abs(math.log10(rate / 0.17)))
        value = 0.9 - 0.5 * min(1.0, away[-1])
        for epoch in range(1, EPOCHS + 1):
            trial.report(value * epoch / EPOCHS, epoch)
        study.tell(trial, value)
    assert np.median(away[15:]) < 0.25 and min(away) < 0.02
