"""The strategy ``curves`` in spaces of words: choices that have no order, as the names of optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from bigbatch.tune.strategies.curve_history import CurveHistory
from bigbatch.tune.strategies.named import make_strategy
from bigbatch.tune.strategies.protocol import Dimension, SearchFacts
from bigbatch.tune.strategies.samplers import PerTrialSampler
from bigbatch.tune.study.knowledge import KnownStudy, KnownTrial
from bigbatch.tune.study.objective import Objective
from helpers.lone_studies import new_study

EPOCHS = 8
OBJECTIVE = Objective("v", worst=0.1)
GRID = (
    Dimension("optimizer", CategoricalDistribution(("lars", "lamb", "sgd"))),
    Dimension("stem", CategoricalDistribution(("conv", "small", "small_pool"))),
    Dimension("schedule", CategoricalDistribution(("cosine", "linear", "poly"))),
)


def of_grid(facts: SearchFacts, trials: int, best: Mapping[str, str]) -> list[tuple[object, ...]]:
    """What a search in a space of words tries, one trial after the other. Each right word is worth five points, and two
    runs of one configuration differ by a tenth of one."""
    study, rng, tried = new_study(), np.random.default_rng(facts.seed), []
    for _ in range(trials):
        study.sampler = PerTrialSampler(make_strategy("curves", "none", facts).sampler)
        trial = study.ask()
        params = {d.name: trial._suggest(d.name, d.distribution) for d in facts.dimensions}
        trial.set_user_attr("config", {"epochs": EPOCHS})
        end = 0.7 + 0.05 * sum(params[name] == word for name, word in best.items()) + 0.001 * rng.normal()
        for epoch in range(1, EPOCHS + 1):
            trial.report(0.1 + (end - 0.1) * epoch / EPOCHS, epoch)
        study.tell(trial, end)
        tried.append(tuple(params.values()))
    return tried


@pytest.mark.parametrize("seed", range(3))
def test_a_small_space_of_words_is_tried_nearly_whole_before_anything_is_repeated(seed: int) -> None:
    facts = SearchFacts(GRID, trials=30, max_epochs=EPOCHS, seed=seed, objective=OBJECTIVE)
    tried = of_grid(facts, 30, {"optimizer": "lamb", "stem": "small", "schedule": "poly"})
    assert ("lamb", "small", "poly") in tried
    assert len(set(tried[:25])) >= 24 and len(set(tried)) == 27


def test_trials_of_a_space_of_words_that_begin_together_differ() -> None:
    """As at the start of an allocation: no trial has a value when the next one is proposed."""
    facts = SearchFacts(GRID, trials=40, max_epochs=EPOCHS, slots=12, seed=0, objective=OBJECTIVE)
    study = new_study()
    for number in range(12):
        trial = study.ask({d.name: d.distribution for d in GRID})
        trial.set_user_attr("config", {"epochs": EPOCHS})
        trial.report(0.8 + 0.01 * (trial.params["optimizer"] == "lamb") - 0.001 * number, EPOCHS)
        study.tell(trial, 0.8 + 0.01 * (trial.params["optimizer"] == "lamb") - 0.001 * number)
    begun = []
    for _ in range(12):
        study.sampler = PerTrialSampler(make_strategy("curves", "none", facts).sampler)
        trial = study.ask()
        begun.append(tuple(trial._suggest(d.name, d.distribution) for d in GRID))
    assert len(set(begun)) == 12


NAMED = tuple(f"optimizer {letter}" for letter in "abcdefghijklmnop")
MANY_WORDS = (
    Dimension("optimizer", CategoricalDistribution(NAMED)),
    Dimension("lr", FloatDistribution(1e-3, 10, log=True)),
)


def of_many_words(facts: SearchFacts, trials: int, crashes: str | None = None) -> list[str]:
    """The optimizers that a search tries, one trial after the other. One is better; the others are alike.

    Args:
        crashes: one with which every trial fails, as one that is not installed.
    """
    study, tried = new_study(), list[str]()
    for _ in range(trials):
        study.sampler = PerTrialSampler(make_strategy("curves", "none", facts).sampler)
        trial = study.ask()
        word, rate = (trial._suggest(d.name, d.distribution) for d in facts.dimensions)
        tried.append(word)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        if word == crashes:
            study.tell(trial, state=TrialState.FAIL)
            continue
        end = 0.7 - 0.1 * math.log10(rate / 0.1) ** 2 + 0.1 * (word == "optimizer d")
        for epoch in range(1, EPOCHS + 1):
            trial.report(0.1 + (end - 0.1) * epoch / EPOCHS, epoch)
        study.tell(trial, end)
    return tried


@pytest.mark.parametrize("crashes", [None, "optimizer o"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_word_is_tried_once_and_then_no_more_than_it_is_worth(seed: int, crashes: str | None) -> None:
    """The first ten trials leave at least six of sixteen words. Every second one of the next has one of these.

    A word that only crashes counts as tried. Else it would be left for ever, and every second trial would crash.
    """
    facts = SearchFacts(MANY_WORDS, trials=60, max_epochs=EPOCHS, seed=seed, objective=OBJECTIVE)
    tried = of_many_words(facts, 34, crashes)
    left = set(NAMED) - set(tried[:10])
    assert len(left) >= 6
    enough = 10 + 2 * len(left)
    assert set(tried[:enough]) == set(NAMED)
    assert tried[enough:].count("optimizer d") >= 6 and tried[10:].count("optimizer o") <= 8


def test_a_word_counts_as_tried_if_another_study_tried_it_and_numbers_and_conditions_are_no_words() -> None:
    conditional = Dimension("grafting", CategoricalDistribution(("adam", "sgd")), {"optimizer": ("optimizer a",)})
    numbers = Dimension("batch", CategoricalDistribution((256, 4096)))
    frontier = Dimension("network", CategoricalDistribution(("resnet18", "resnet50")))
    known = KnownStudy("old", (KnownTrial(0, {"optimizer": "optimizer c", "lr": 0.1}, {8: 0.5}, 8),))
    facts = SearchFacts((*MANY_WORDS, conditional, numbers, frontier), 60, EPOCHS, frontier="network")
    assert CurveHistory(facts).untried == {"optimizer": set(NAMED)}
    history = CurveHistory(replace(facts, knowledge=(known,)))
    assert history.untried == {"optimizer": set(NAMED) - {"optimizer c"}}
    waiting, running = create_trial(state=TrialState.WAITING), create_trial(state=TrialState.RUNNING)
    running.params, running.number = {"optimizer": "optimizer d"}, 1
    history.take_in([waiting, running])
    assert history.untried == {"optimizer": set(NAMED) - {"optimizer c", "optimizer d"}}
