"""Searches of spaces with constraints: what is infeasible ranks nowhere, and what is refused costs no trial."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.trial import SpaceTrial
from bigbatch.tune.console.outcome import refusals_in_words
from bigbatch.tune.runs.feasible import is_infeasible
from bigbatch.tune.runs.frontier import counted_trials
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.observer import trial_views
from bigbatch.tune.runs.run import count_ended, was_refused
from bigbatch.tune.runs.tables import trials_table
from bigbatch.tune.trials.trial_manager import MOST_REFUSED
from helpers.simulated_search import Params, late_share, own_search

SEEDS, LATE = range(2), 14
WIDTHS = {"width": IntDistribution(8, 512, log=True), "lr": FloatDistribution(1e-4, 1.0, log=True)}


def wide_is_slow(trial: SpaceTrial) -> None:
    """Feasible up to a width of 100: 61 % of the range of its logarithm."""
    trial.suggest_int("width", 8, 512, log=True)
    trial.suggest_float("lr", 1e-4, 1.0, log=True)
    trial.set_constraint("epoch_s", at_most=20.0)


def wide_is_better(params: Params, epoch: int) -> dict[str, object]:
    away = math.log10(params["lr"]) + 1.5
    value = max(0.1, 0.6 + 0.06 * math.log2(params["width"] / 8) - 0.05 * away**2)
    return {"val_top1": value * (1 - math.exp(-epoch)), "train_s": params["width"] / 5}


def constrained(folder: Path, strategy: str, stopping: str, seed: int, **more: Any) -> list[FrozenTrial]:
    search = own_search(
        folder, WIDTHS, wide_is_slow, wide_is_better, strategy=strategy, stopping=stopping, seed=seed, **more
    )
    return search.run().trials


def best_of(trials: list[FrozenTrial]) -> float:
    """The best value of the trials that ran to their end."""
    return max(t.values[0] for t in trials if t.state == TrialState.COMPLETE and t.values)


@pytest.mark.parametrize("stopping", ["asha", "look"])
def test_curves_proposes_what_probably_meets_the_constraints_although_the_best_values_lie_beyond(tmp_path, stopping):
    found = [constrained(tmp_path / f"{seed}", "curves", stopping, seed) for seed in SEEDS]
    shares = [late_share(trials, LATE, is_infeasible) for trials in found]
    assert statistics.mean(shares) < 0.3, "a random search has 39 %; without a model of the bound it is 60 to 90 %"
    highest = 0.6 + 0.06 * math.log2(100 / 8)
    assert statistics.median(map(best_of, found)) > 0.95 * highest * (1 - math.exp(-4))


def test_tpe_learns_from_trials_that_ended_early_as_infeasible(tmp_path):
    trials = constrained(tmp_path, "tpe", "none", 1, trials=20)
    assert late_share(trials, 10, is_infeasible) <= 0.4 and best_of(trials) > 0.7


ODD = {"n": IntDistribution(0, 99), "x": FloatDistribution(0.0, 1.0)}


def refuses_odd(trial: SpaceTrial) -> None:
    number = trial.suggest_int("n", 0, 99)
    trial.suggest_float("x", 0.0, 1.0)
    if number % 2:
        raise ValueError("n must be even")


def bounds_odd(trial: SpaceTrial) -> None:
    number = trial.suggest_int("n", 0, 99)
    trial.suggest_float("x", 0.0, 1.0)
    trial.set_constraint("oddness", number % 2, at_most=0.0)


def by_x(params: Params, epoch: int) -> dict[str, object]:
    return {"val_top1": 0.1 + 0.1 * params["x"] * epoch}


@pytest.mark.parametrize(
    ("strategy", "stopping", "space"),
    [("tpe", "asha", refuses_odd), ("curves", "look", bounds_odd)],
)
def test_a_refused_configuration_costs_no_trial_and_is_not_listed(tmp_path, space, strategy, stopping):
    search = own_search(tmp_path, ODD, space, by_x, strategy=strategy, stopping=stopping, trials=20, epochs=10)
    trials = search.run().trials
    refused = [t for t in trials if was_refused(t)]
    configurations = [t for t in trials if "continues" not in t.user_attrs and not was_refused(t)]
    assert search.manager.fatal is None and refused and len(configurations) == 20
    assert search.manager.finished == count_ended(trials) == 20
    assert all(t.params["n"] % 2 == 0 for t in configurations) and all(t.params["n"] % 2 for t in refused)
    assert len(search.said) == len(refused) and all("another one takes its place" in line for line in search.said)
    shown = {view.number for view in trial_views(trials)}
    listed = set(trials_table(trials, Objectives()).column("trial").to_pylist())
    counted = {t.number for t in counted_trials(trials)}
    assert not {t.number for t in refused} & (shown | listed | counted)
    assert f"{len(refused)} configuration" in refusals_in_words(trials)[0]


def test_a_space_that_allows_little_ends_no_search_and_one_that_allows_nothing_does(tmp_path):
    def space_up_to(most: int) -> Any:
        def space(trial: SpaceTrial) -> None:
            number = trial.suggest_int("n", 0, 99)
            trial.suggest_float("x", 0.0, 1.0)
            if number >= most:
                raise ValueError(f"n must be below {most}")

        return space

    little = own_search(tmp_path / "little", ODD, space_up_to(10), by_x, strategy="random", trials=10)
    assert sum(not was_refused(t) for t in little.run().trials) == 10 and little.manager.fatal is None
    nothing = own_search(tmp_path / "nothing", ODD, space_up_to(0), by_x, strategy="random", trials=10)
    assert len(nothing.run().trials) == MOST_REFUSED and nothing.manager.finished == 0
    assert nothing.manager.fatal is not None and "n must be below 0" in nothing.manager.fatal


def test_curves_learns_which_configurations_are_refused(tmp_path):
    def space(trial: SpaceTrial) -> None:
        if trial.suggest_float("x", 0.0, 1.0) > 0.5:  # where the best values would be
            raise ValueError("x is at most 0.5")
        trial.suggest_int("n", 0, 99)

    for seed in SEEDS:
        search = own_search(tmp_path / f"{seed}", ODD, space, by_x, strategy="curves", trials=24, seed=seed)
        trials = search.run().trials
        assert search.manager.fatal is None and sum(map(was_refused, trials)) < 60, "at random 24 are"
        assert max(t.params["x"] for t in trials if t.state == TrialState.COMPLETE) > 0.48
