"""The strategy ``curves``: what it proposes for studies whose landscape or costs the test knows."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import spearmanr

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.curve_model import CurvePoints
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.models.unit_space import position
from bigbatch.tune.proposers.curves import USUAL, CurvesSampler, surcharge
from bigbatch.tune.runs.knowledge import Curve
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import DIVERGED_ATTR, EPOCH_ATTR, WORKERS_ATTR
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import curves_of, made, new_study, next_trial, rise

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
        trial = next_trial(study, make_strategy(strategy, "none", facts))
        params = suggest(trial, NAMES)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        found = loss(params)
        losses.append(found)
        if params["lr"] > 3 * params["batch"] / 1024:
            trial.set_user_attr(DIVERGED_ATTR, True)
            study.tell(trial, state=TrialState.FAIL)
            continue
        rise(study, trial, 0.1 + 0.8 * math.exp(-found), EPOCHS, start=0.1)
    return losses


def test_it_comes_nearer_to_the_best_than_random_search_and_diverges_less_often_with_time():
    ours = [search("curves", seed) for seed in range(2)]
    random = [search("random", seed) for seed in range(2)]
    assert np.mean([min(losses) for losses in ours]) < 0.4 * np.mean([min(losses) for losses in random])
    late, early = [np.median([losses[part] for losses in ours]) for part in (slice(-15, None), slice(0, 10))]
    assert late < 0.4 * np.median(random) and late < 0.5 * early


def filled(facts: SearchFacts = FACTS, trials: int = 16) -> optuna.Study:
    """A study of finished quasi-random trials."""
    study = new_study()
    for _ in range(trials):
        trial = next_trial(study, make_strategy("qmc", "none", facts))
        rise(study, trial, 0.1 + 0.8 * math.exp(-loss(suggest(trial, NAMES))), EPOCHS)
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


def test_a_logarithmic_range_and_choices_that_are_numbers_are_placed_by_their_logarithm():
    assert position(0.1, FloatDistribution(0.01, 1.0, log=True)) == pytest.approx(0.5)
    assert position(1024, CategoricalDistribution((256, 1024, 4096))) == pytest.approx(0.5)
    assert position(1, CategoricalDistribution((0, 1, 5))) == pytest.approx(0.2)


@pytest.mark.parametrize("odd", ["high first losses", "one run at 1e4", "one run that diverged"])
def test_a_loss_without_a_known_worst_value_is_learned(odd: str) -> None:
    """Nobody knows what a diverged run is worth. The best runs differ by 1 to 3.5, beside values of ten thousand."""
    dims = (Dimension("lr", FloatDistribution(1e-3, 10, log=True)), Dimension("wd", FloatDistribution(0, 1)))
    names = {d.name: d.distribution for d in dims}
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
        ended = TrialState.FAIL if lost else TrialState.COMPLETE
        attrs = {"diverged": True} if lost else {}
        trials.append(made(params, names, {} if lost else values, ended, config={"epochs": 16}, **attrs))
        trials[-1].number = number
    encoder = CurveEncoder(facts)
    study = new_study("minimize")
    study.add_trials(trials)
    learned = encoder.learn(study)
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
        values = {EPOCHS: 0.9 - 0.1 * math.log10(rate / 0.1) ** 2}
        names = {d.name: d.distribution for d in dims}
        trials.append(made({"batch": 256, "lr": rate}, names, values, config={"epochs": EPOCHS}))
        trials[-1].number = number
    sampler = CurvesSampler(facts, 30)
    study = new_study()
    study.add_trials(trials)
    learned = sampler._encoder.learn(study)
    asked = [{"batch": 4096 if other else 256, "lr": rate} for rate in (0.05, 0.1, 0.2)]
    features = np.array([sampler._space.encode(params) for params in asked])
    assert (sampler._repetition(learned, asked, features) > 0).tolist() == [not other] * 3


KINDS = CategoricalDistribution(("quick", "slow"))
COST_DIMENSIONS = (Dimension("x", FloatDistribution(0, 1)), Dimension("kind", KINDS))
COST_FACTS = SearchFacts(COST_DIMENSIONS, trials=60, max_epochs=10, seed=3, objective=Objective("v", worst=0.0))


def curve(number: int, epoch_s: float | None, epochs: int = 10) -> Curve:
    return Curve(number, {}, {epochs: 0.5}, epochs, epoch_s=epoch_s)


def test_what_costs_six_times_the_median_is_four_times_more_than_usual() -> None:
    """Four runs of 10 s an epoch at x = 0, two of 60 s at x = 1; the median is 10 s."""
    at = np.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    curves = [curve(i, 10.0) for i in range(4)] + [curve(i, 60.0) for i in (4, 5)]
    cheap, expensive = surcharge(curves, at, range(6), np.array([[0.0], [1.0]]))
    assert cheap == 0
    assert expensive == pytest.approx(np.log(6 / USUAL), abs=0.1)
    longer = [curve(i, 10.0) for i in range(4)] + [curve(i, 10.0, epochs=60) for i in (4, 5)]
    assert surcharge(longer, at, range(6), np.array([[1.0]]))[0] == pytest.approx(expensive)


def run(x: float, kind: str, epoch_s: float, more: float = 0.0) -> FrozenTrial:
    """A finished run: it comes further at a larger x, and by ``more``."""
    values = {epoch: (0.3 + 0.3 * x) * epoch / 10 + more for epoch in range(1, 11)}
    records = {f"{EPOCH_ATTR}{e:05d}": {"epoch": e, "train_s": epoch_s} for e in values}
    config = {"epochs": 10, "schedule": {"warmup_epochs": 0.0}}
    names = {d.name: d.distribution for d in COST_DIMENSIONS}
    return made({"x": x, "kind": kind}, names, values, config=config, **records)


def test_the_time_of_an_epoch_is_the_median_of_those_of_the_run() -> None:
    """The first epoch also starts processes. A run without records has no cost."""
    study = new_study()
    study.add_trial(run(0.5, "quick", 10.0))
    (first,) = study.get_trials()
    first.user_attrs[f"{EPOCH_ATTR}00001"]["train_s"] = 300.0
    (one,) = curves_of([first], COST_FACTS)
    assert one.epoch_s == pytest.approx(10.0) and one.run_s == pytest.approx(100.0)
    first.user_attrs[WORKERS_ATTR] = 4
    assert curves_of([first], COST_FACTS)[0].epoch_s == pytest.approx(40.0), "device seconds"
    first.user_attrs[f"{EPOCH_ATTR}00002"]["train_s"] = float("inf")
    assert curves_of([first], COST_FACTS)[0].epoch_s == pytest.approx(40.0), "an error of the record"
    early = {key: value for key, value in first.user_attrs.items() if key <= f"{EPOCH_ATTR}00001"}
    first.user_attrs, known = early, first.user_attrs
    assert curves_of([first], COST_FACTS)[0].run_s is None, "its first epoch alone, in which processes start"
    first.user_attrs = known
    first.user_attrs = {key: value for key, value in first.user_attrs.items() if not key.startswith(EPOCH_ATTR)}
    assert curves_of([first], COST_FACTS)[0].run_s is None
