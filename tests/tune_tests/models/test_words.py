"""The strategy ``curves`` in spaces of words: choices that have no order, as the names of optimizers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from bigbatch.search_spaces.check import check_space
from bigbatch.search_spaces.registry import load_space
from bigbatch.search_spaces.workload import Workload
from bigbatch.tune.models.curve_history import CurveHistory
from bigbatch.tune.models.protocol import Dimension, SearchFacts, dimensions_of
from bigbatch.tune.models.unit_space import words_of
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial
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


def test_trials_of_a_space_of_words_that_begin_together_differ() -> None:
    """As at the start of an allocation: no trial has a value when the next one is proposed."""
    facts = SearchFacts(GRID, trials=40, max_epochs=EPOCHS, slots=12, seed=0, objective=OBJECTIVE)
    study = new_study()
    for number in range(12):
        trial = study.ask({d.name: d.distribution for d in GRID})
        rise(study, trial, 0.8 + 0.01 * (trial.params["optimizer"] == "lamb") - 0.001 * number, EPOCHS)
    begun = []
    for _ in range(12):
        trial = next_trial(study, make_strategy("curves", "none", facts))
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


@pytest.mark.parametrize("open_ended", [False, True])
def test_new_words_are_for_the_first_half_of_a_short_search(open_ended: bool) -> None:
    """Of sixteen words ten trials leave at least six; the other half goes to what has proved to be good. With a budget
    alone, the half is that of the trials that are guessed."""
    facts = SearchFacts(MANY_WORDS, 24, EPOCHS, seed=2, objective=OBJECTIVE, open_ended=open_ended)
    tried = of_many_words(facts, 24)
    assert len(set(tried[:12])) == 12 and len(set(tried)) < 16
    assert tried[12:].count("optimizer d") >= 6


def test_new_words_come_at_each_batch() -> None:
    """The batches alternate with the trials' numbers, and new words do not."""
    dims = (*MANY_WORDS, Dimension("batch", CategoricalDistribution((128, 256))))
    facts = SearchFacts(dims, trials=60, max_epochs=EPOCHS, seed=3, objective=OBJECTIVE, frontier="batch")
    study, words, at = new_study(), set[str](), set[int]()
    for number in range(30):
        trial = next_trial(study, make_strategy("curves", "none", facts))
        params = {d.name: trial._suggest(d.name, d.distribution) for d in dims}
        if number >= 10 and params["optimizer"] not in words:
            at.add(params["batch"])
        words.add(params["optimizer"])
        rise(study, trial, 0.7 - 0.1 * math.log10(params["lr"] / 0.1) ** 2, EPOCHS)
    assert words == set(NAMED) and at == {128, 256}


def known_words(words: Sequence[str], end: Callable[[str, float], float]) -> KnownStudy:
    """Two runs of each word, with rates over the whole range."""
    rates = [10 ** (-3 + 4 * (7 * i % 32) / 31) for i in range(2 * len(words))]
    runs = [(words[i % len(words)], rate) for i, rate in enumerate(rates)]
    trials = [
        KnownTrial(i, {"optimizer": word, "lr": rate}, {EPOCHS: end(word, rate)}, EPOCHS)
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


def test_numbers_the_frontier_and_what_some_configurations_lack_are_no_words() -> None:
    dims = (
        *MANY_WORDS,
        Dimension("grafting", CategoricalDistribution(("adam", "sgd")), {"optimizer": ("optimizer a",)}),
        Dimension("shape", CategoricalDistribution(("linear", "cosine")), always=False),
        Dimension("batch", CategoricalDistribution((256, 4096))),
        Dimension("network", CategoricalDistribution(("resnet18", "resnet50"))),
        Dimension("nesterov", CategoricalDistribution((None, True, False))),
    )
    history = CurveHistory(SearchFacts(dims, 60, EPOCHS, frontier="network"))
    assert history.untried == {"optimizer": set(NAMED), "nesterov": {None, True, False}}
    waiting, running = create_trial(state=TrialState.WAITING), create_trial(state=TrialState.RUNNING)
    running.params, running.number = {"optimizer": "optimizer d", "nesterov": None}, 1
    history.take_in([waiting, running])
    assert history.untried == {"optimizer": set(NAMED) - {"optimizer d"}, "nesterov": {True, False}}


def test_what_a_number_or_two_choices_decide_is_not_in_every_configuration(tmp_path: Path) -> None:
    """As the space says itself: no single choice tells whether these parameters exist."""
    (tmp_path / "nested.py").write_text(NESTED)
    workload = Workload("digits", train_size=1437, num_classes=10, image_size=8, model="resnet18", epochs=6)
    found = check_space(load_space(str(tmp_path / "nested.py")), workload)
    assert {"shape", "inner"} <= found.keys()
    words = words_of(SearchFacts(dimensions_of(found), 40, 6))
    assert words == {"optimizer": {"sgd", "lars", "lamb"}, "flavour": set("abc")}


NESTED = """
def space(trial, workload):
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "lars", "lamb"])
    flavour = trial.suggest_categorical("flavour", list("abc"))
    warmup = trial.suggest_float("warmup", 0, 2)
    if warmup > 1:
        trial.suggest_categorical("shape", ["linear", "cosine"])
    if optimizer == "sgd" and trial.suggest_categorical("kind", ["x", "y"]) == "x":
        trial.suggest_categorical("inner", ["p", "q"])
    return workload.config({"optimizer": optimizer, "peak_lr": 0.1, "warmup_epochs": warmup, "global_size": 128})
"""
