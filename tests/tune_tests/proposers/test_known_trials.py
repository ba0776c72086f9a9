"""Optuna's samplers with what other studies say: nearer to what is good there, and no trace of it in the study."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from bigbatch.tune.models.names import CAPABILITIES
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.proposers.known_trials import MOST_KNOWN, KnownTrials
from bigbatch.tune.proposers.samplers import PerTrialSampler, quiet_optuna
from bigbatch.tune.runs.knowledge import KnownStudy, KnownTrial
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.strategies import make_strategy
from helpers import conducted
from helpers.conducted import Search, in_memory, same_after_kills, summary

RATE, DECAY = FloatDistribution(0.001, 1.0, log=True), FloatDistribution(1e-6, 1e-2, log=True)
BATCH = CategoricalDistribution((256, 1024))
KNOWING = sorted(name for name, can in CAPABILITIES.items() if can.knows_others and name != "curves")
EPOCHS = 8


def away(lr: float, wd: float) -> float:
    """Decades from the best place."""
    return math.hypot(math.log10(lr / 0.2), math.log10(wd / 5e-6))


def value(lr: float, wd: float) -> float:
    return 0.9 - 0.1 * away(lr, wd)


def old_study(sign: float = 1.0, trials: int = 40) -> KnownStudy:
    """Two batches whose levels do not compare, with the same best place, or with the same worst one."""
    drawn = np.random.default_rng(0).random((trials, 2))
    places = [(0.001 * 1000**u, 1e-6 * 1e4**v) for u, v in drawn.tolist()]
    return KnownStudy(
        "old",
        tuple(
            KnownTrial(i, {"lr": lr, "wd": wd}, {EPOCHS: sign * value(lr, wd) - i % 2}, EPOCHS, group=64 * (1 + i % 2))
            for i, (lr, wd) in enumerate(places)
        ),
    )


def facts_of(*known: KnownStudy, frontier: bool = False) -> SearchFacts:
    dimensions = (Dimension("lr", RATE), Dimension("wd", DECAY), *([Dimension("batch", BATCH)] if frontier else []))
    objective, name = Objective("v", worst=0.1), "batch" if frontier else None
    return SearchFacts(dimensions, 12, EPOCHS, objective=objective, knowledge=known, frontier=name)


def search(strategy: str, facts: SearchFacts, trials: int) -> optuna.Study:
    quiet_optuna()
    study = optuna.create_study(direction="maximize")
    for _ in range(trials):
        study.sampler = PerTrialSampler(make_strategy(strategy, "none", facts).sampler)
        trial = study.ask()
        trial.set_user_attr("config", {"epochs": EPOCHS})
        if facts.frontier:
            trial._suggest("batch", BATCH)
        end = value(trial._suggest("lr", RATE), trial._suggest("wd", DECAY))
        trial.report(end, EPOCHS)
        study.tell(trial, end)
    return study


def best_so_far(strategy: str, *known: KnownStudy, frontier: bool) -> float:
    """The distance of the best trial so far: the mean over the trials of two searches."""
    found: list[float] = []
    for seed in range(2):
        study = search(strategy, replace(facts_of(*known, frontier=frontier), seed=seed), 9)
        found += itertools.accumulate((away(t.params["lr"], t.params["wd"]) for t in study.trials), min)
    return float(np.mean(found))


@pytest.mark.parametrize(("strategy", "frontier"), [("cmaes", True), ("gp", False), ("tpe", True)])
def test_what_is_known_leads_to_what_is_good(strategy, frontier):
    assert KNOWING == ["cmaes", "gp", "tpe"]
    without = best_so_far(strategy, frontier=frontier)
    assert best_so_far(strategy, old_study(), frontier=frontier) < 0.8 * without


@pytest.mark.parametrize("strategy", KNOWING)
def test_old_trials_are_no_trials_of_the_study(strategy):
    study = search(strategy, facts_of(old_study()), 8)
    assert [t.number for t in study.trials] == list(range(8))
    old = {trial.params["lr"] for trial in old_study().trials}
    assert not old & {t.params["lr"] for t in study.trials} and not study.user_attrs


def test_a_study_that_is_refuted_tells_nothing_and_old_trials_give_way_to_results():
    study = search("random", facts_of(), 10)
    told = KnownTrials(facts_of(old_study())).told(study)
    assert len(told) == 40 and not KnownTrials(facts_of(old_study(-1.0))).told(study)
    best = max(told, key=lambda trial: trial.values[0])
    assert away(best.params["lr"], best.params["wd"]) < 0.7
    assert sorted(round(t.values[0], 6) for t in told[:4])[0] < 0 < told[0].values[0], "both the best and the worst"

    seen: list[list[int]] = []

    class Watching(optuna.samplers.RandomSampler):
        def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: object) -> dict[str, object]:
            seen.append([t.number for t in study.get_trials()])
            return {}

    from bigbatch.tune.proposers.known_trials import knowing_others

    proposer = knowing_others(lambda number: Watching(seed=0), facts_of(old_study()))
    for number in range(0, 4):
        proposer(number).sample_relative(study, study.trials[-1], {})
    old = [[n for n in numbers if n < 0] for numbers in seen]
    assert [len(numbers) for numbers in old] == [MOST_KNOWN - 10, 0, MOST_KNOWN - 10, 0], "every second one sees none"
    assert old[0] == [-1] * len(old[0]) and seen[0][len(old[0]) :] == list(range(10))


@pytest.mark.parametrize("strategy", ["tpe", "gp"])
def test_a_study_without_a_finished_trial_makes_no_value_worthless(strategy):
    """It may still run, or all its trials were stopped. Its mean then is no number."""
    whole = old_study()
    cut = tuple(replace(t, values={4: t.values[EPOCHS]}) for t in whole.trials[:9])
    facts = facts_of(whole, KnownStudy("cut", cut))
    study = search(strategy, facts, 9)
    made = KnownTrials(facts)
    scored = made.scored(study, study.get_trials(deepcopy=False))
    assert len(scored) == 9 and all(math.isfinite(t.values[0]) for t in scored)
    alone = KnownTrials(facts_of(whole)).scored(study, study.get_trials(deepcopy=False))
    assert [t.values for t in scored] == [t.values for t in alone]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_few_good_trials_all_have_good_scores_in_their_order(direction):
    """By their ranks alone, the worse one of two would have a bad score."""
    sign = 1 if direction == "maximize" else -1
    objective = Objective("v", direction, worst=sign * -2.0)
    facts = replace(facts_of(old_study(sign)), objective=objective)
    study = optuna.create_study(direction=direction)
    for lr in (0.2, 0.25):
        trial = study.ask({"lr": FloatDistribution(lr, lr), "wd": FloatDistribution(5e-6, 5e-6)})
        trial.report(sign * value(lr, 5e-6), EPOCHS)
        study.tell(trial, sign * value(lr, 5e-6))
    first, second = (t.values[0] for t in KnownTrials(facts).scored(study, study.trials))
    assert sign * first >= sign * second > 0.5
    assert max(sign * t.values[0] for t in KnownTrials(facts).told(study)) > 1.5


@pytest.mark.parametrize(("strategy", "stopping"), [*((name, "none") for name in KNOWING), ("curves", "look")])
def test_a_search_with_knowledge_makes_the_same_decisions_after_kills(strategy, stopping, tmp_path: Path, monkeypatch):
    first = Search("random", "none", in_memory(tmp_path / "first")).run()
    known = [
        KnownTrial(i, {**t.params, "lr_multiplier": t.params["lr_multiplier"] * 0.99**k}, dict(t.intermediate_values),
                   conducted.EPOCHS, group=t.params["global_batch_size"])
        for k in range(3) for i, t in enumerate(first.trials) if len(t.intermediate_values) == conducted.EPOCHS
    ]  # fmt: skip
    without = Search(strategy, stopping, in_memory(tmp_path / "without")).run()
    plain = conducted.make_strategy
    knowledge = (KnownStudy("first", tuple(known)),)
    monkeypatch.setattr(
        conducted, "make_strategy", lambda name, stop, facts: plain(name, stop, replace(facts, knowledge=knowledge))
    )
    assert summary(same_after_kills(strategy, stopping, in_memory, tmp_path)) != summary(without.trials)
