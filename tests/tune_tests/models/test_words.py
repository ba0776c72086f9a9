"""The strategy ``curves`` in spaces of words: choices that have no order, as the names of optimizers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.runs.knowledge import Curve, KnownStudy
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import new_study, next_trial, rise

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
        trial = next_trial(study, make_strategy("curves", "none", facts))
        params = {d.name: trial._suggest(d.name, d.distribution) for d in facts.dimensions}
        end = 0.7 + 0.05 * sum(params[name] == word for name, word in best.items()) + 0.001 * rng.normal()
        rise(study, trial, end, EPOCHS, start=0.1)
        tried.append(tuple(params.values()))
    return tried


def test_a_small_space_of_words_is_tried_nearly_whole_before_anything_is_repeated() -> None:
    facts = SearchFacts(GRID, trials=30, max_epochs=EPOCHS, objective=OBJECTIVE)
    tried = of_grid(facts, 30, {"optimizer": "lamb", "stem": "small", "schedule": "poly"})
    assert ("lamb", "small", "poly") in tried
    assert len(set(tried[:25])) >= 24 and len(set(tried)) == 27


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
        trial = next_trial(study, make_strategy("curves", "none", facts))
        word, rate = (trial._suggest(d.name, d.distribution) for d in facts.dimensions)
        tried.append(word)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        if word == crashes:
            study.tell(trial, state=TrialState.FAIL)
            continue
        end = 0.7 - 0.1 * math.log10(rate / 0.1) ** 2 + 0.1 * (word == "optimizer d")
        rise(study, trial, end, EPOCHS, start=0.1)
    return tried


@pytest.mark.parametrize(("seed", "crashes"), [(1, None), (2, "optimizer o")])
def test_each_word_is_tried_once_and_then_no_more_than_it_is_worth(seed: int, crashes: str | None) -> None:
    """The first ten trials leave at least six of sixteen words. Each of the next has one of these, until none is left.

    A word that only crashes counts as tried. Else it would be left for ever, and every second trial would crash.
    """
    facts = SearchFacts(MANY_WORDS, trials=60, max_epochs=EPOCHS, seed=seed, objective=OBJECTIVE)
    tried = of_many_words(facts, 34, crashes)
    left = set(NAMED) - set(tried[:10])
    assert len(left) >= 6
    enough = 10 + len(left)
    assert set(tried[:enough]) == set(NAMED)
    assert tried[enough:].count("optimizer d") >= 9 and tried[10:].count("optimizer o") <= 8


def known_words(words: Sequence[str], end: Callable[[str, float], float]) -> KnownStudy:
    """Two runs of each word, with rates over the whole range."""
    rates = [10 ** (-3 + 4 * (7 * i % 32) / 31) for i in range(2 * len(words))]
    runs = [(words[i % len(words)], rate) for i, rate in enumerate(rates)]
    trials = [
        Curve(i, {"optimizer": word, "lr": rate}, {EPOCHS: end(word, rate)}, EPOCHS)
        for i, (word, rate) in enumerate(runs)
    ]
    return KnownStudy("old", tuple(trials))


@pytest.mark.parametrize("agrees", [True, False])
def test_words_that_another_study_tried_are_known_only_if_it_agrees(agrees: bool) -> None:
    """A study that this one refutes says nothing, and so each word is tried here."""

    def end(word: str, rate: float) -> float:
        better = 0.7 - 0.1 * math.log10(rate / 0.1) ** 2 + 0.1 * (word == "optimizer d")
        return better if agrees else 0.8 - better

    facts = SearchFacts(MANY_WORDS, trials=60, max_epochs=EPOCHS, seed=2, objective=OBJECTIVE)
    tried = of_many_words(replace(facts, knowledge=(known_words(NAMED, end),)), 34)
    assert "optimizer d" in tried
    assert (len(set(tried)) == len(NAMED)) != agrees
    assert tried[10:].count("optimizer d") >= (18 if agrees else 9)
