"""What more trials would bring, compared with draws from distributions whose answer is known."""

import itertools
import math
import statistics

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.budget.forecast import LEAST_DRAWS, draws_of, expected_best, forecast, forecast_words, more_hours
from bigbatch.tune.runs.objective import Objective


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_the_expected_best_is_the_mean_over_all_subsets(size):
    values = [0.3, 0.9, 0.1, 0.9, 0.5, 0.2, 0.7, 0.65]
    mean = statistics.fmean(max(subset) for subset in itertools.combinations(values, size))
    assert expected_best(values, size) == pytest.approx(mean)
    if size < 8:
        middle = (expected_best(values, size) + expected_best(values, size + 1)) / 2
        assert expected_best(values, size + 0.5) == pytest.approx(middle)


def uniform_gain(n: int, k: int) -> float:
    return (n + k) / (n + k + 1) - n / (n + 1)


def exponential_gain(n: int, k: int) -> float:
    return sum(1 / i for i in range(n + 1, n + k + 1))


@pytest.mark.parametrize(("draw", "gain"), [("uniform", uniform_gain), ("exponential", exponential_gain)])
@pytest.mark.parametrize(("n", "k"), [(12, 12), (32, 32), (32, 96)])
def test_gains_are_right_on_average_and_mostly_within_the_range(draw, gain, n, k):
    """The expected best of m uniform draws is m / (m + 1), of exponential ones 1 + 1/2 + … + 1/m."""
    rng = np.random.default_rng(n + k)
    found = [forecast(list(getattr(rng, draw)(size=n)), k) for _ in range(400)]
    assert 0.75 < statistics.fmean(one.gain for one in found) / gain(n, k) < 1.6
    assert statistics.fmean(one.low <= gain(n, k) <= one.high for one in found) > 0.6


def test_the_chance_is_what_it_is_for_any_distribution():
    rng, n, k = np.random.default_rng(0), 10, 30
    drawn = rng.lognormal(size=(4000, n + k))
    share = (drawn[:, n:].max(1) > drawn[:, :n].max(1)).mean()
    assert forecast(list(drawn[0, :n]), k).chance == pytest.approx(share, abs=0.03)


def test_edges():
    assert forecast([0.5] * (LEAST_DRAWS - 1), 10) is None
    assert forecast([0.5] * LEAST_DRAWS, 0) is None
    flat = forecast([0.5] * LEAST_DRAWS, 10)
    assert flat is not None and flat.gain == flat.high == 0
    near = forecast([0.1 * i for i in range(10)], 1000, room=0.001)
    assert near is not None and near.gain <= near.high <= 0.001
    assert (more_hours(0.2), more_hours(1.0), more_hours(200.0), more_hours(None)) == (0.2, 10.0, 10.0, 10.0)


def study_of(values: list[float]) -> optuna.Study:
    study = optuna.create_study(direction="maximize")
    for value in values:
        study.tell(study.ask(), value)
    return study


def test_each_configuration_is_one_draw():
    study = study_of([0.5, 0.6])
    for attrs, state in (
        ({"diverged": True}, TrialState.FAIL),
        ({}, TrialState.FAIL),
        ({"paused_in_epoch": 1}, TrialState.PRUNED),
        ({"continues": 4}, TrialState.PRUNED),
    ):
        trial = study.ask()
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        trial.report(0.3 + trial.number / 100, 1)
        study.tell(trial, state=state)
    study.ask()
    assert draws_of(study.trials, Objective(worst=0.1)) == [0.5, 0.6, 0.1, 0.35]
    again = study.ask()
    again.set_user_attr("confirms", 0)
    study.tell(again, 0.9)
    assert draws_of(study.trials, Objective(worst=0.1)) == [0.5, 0.6, 0.1, 0.35], "a confirmation is no draw"
    several = optuna.create_study(directions=["maximize", "minimize"])
    several.tell(several.ask(), [0.7, 12.0])
    assert draws_of(several.trials, Objective(worst=0.1)) == [0.7]
    assert draws_of(study.trials, Objective("val_loss", "minimize", 2.3))[0] == -0.5


def test_the_sentence_says_how_many_trials_the_chance_and_how_unsure_it_is():
    values = [0.80 + 0.01 * math.sin(7 * i) for i in range(20)]
    text = forecast_words(study_of(values).trials, Objective(worst=0.1), 20.0, 10.0, "GPU hours")
    assert text.startswith("10 more GPU hours are about 10 more trials. If they come out as the 20 so far")
    assert "chance of 33 %" in text and "points (the truth is probably between" in text
    few = forecast_words(study_of(values[:5]).trials, Objective(worst=0.1), 5.0, 10.0, "GPU hours")
    assert few == "What 10 more GPU hours would bring cannot be said from 5 ended trials."
    assert "less than one trial" in forecast_words(
        study_of(values).trials, Objective(worst=0.1), 900.0, 10.0, "GPU hours"
    )
    assert forecast_words([], Objective(worst=0.1), 5.0, 10.0, "GPU hours") == ""
