"""Searches of spaces with constraints: what is infeasible ranks nowhere, and what is refused costs no trial."""

import statistics
from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from bigbatch.search_spaces.trial import SpaceTrial
from bigbatch.tune.console.findings import refusals_in_words
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import begun, count_ended, counted_trials, was_refused
from bigbatch.tune.runs.tables import trials_table
from bigbatch.tune.trials.trial_manager import MOST_REFUSED
from helpers.simulated_search import Params, late_share, own_search

SEEDS, LATE = range(2), 14


def test_a_bound_on_the_hours_of_a_run_counts_before_any_run_has_reached_it(tmp_path):
    def space(trial: SpaceTrial) -> None:
        trial.suggest_float("size", 0.0, 1.0)
        trial.set_constraint("gpu_hours", at_most=1.0)

    def record(params: Params, epoch: int) -> dict[str, object]:  # four epochs of up to half an hour
        return {"val_top1": 0.2 + 0.1 * params["size"] * epoch, "train_s": 1800.0 * params["size"]}

    sizes = {"size": FloatDistribution(0.0, 1.0)}
    shares = []
    for seed in SEEDS:
        search = own_search(tmp_path / f"{seed}", sizes, space, record, strategy="curves", seed=seed)
        shares.append(late_share(search.run().trials, LATE, lambda trial: trial.params["size"] > 0.55))
    assert statistics.mean(shares) < 0.4, "of random ones 45 % take more than ten percent too long"


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
    shown = {trial.number for trial in begun(trials)}
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
