"""Budgets of minutes, with the start of Ray and the end of the search in them: simulated, by the real manager."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.tune.budget.budget import Limits
from bigbatch.tune.budget.pace import SessionTimes
from helpers.budgeted import EPOCHS, BudgetedSearch

RAY_S, START_S, END_S, EPOCH_S = 12.0, 15.0, 9.0, 10.0
TIMES = SessionTimes(ray_start_s=RAY_S, trial_start_s=START_S, ending_s=END_S)
LEAST_S = RAY_S + START_S + END_S
RUN_S = START_S + EPOCHS * EPOCH_S


def search(folder: Path, seconds: float, slots: int, of_time: bool, noise: float = 0.0) -> BudgetedSearch:
    """``seconds``: of the budget, for each device."""
    rng = random.Random(slots)
    limits = Limits(time_s=seconds) if of_time else Limits(device_s=slots * seconds)
    return BudgetedSearch(
        folder / "s", limits, None, slots=slots, ray_s=RAY_S, start_s=START_S, end_s=END_S, expected=TIMES,
        seconds=lambda batch: EPOCH_S * rng.lognormvariate(0, noise),
    ).run()  # fmt: skip


@pytest.mark.parametrize("of_time", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("seconds", [LEAST_S, LEAST_S + 25, 2 * LEAST_S, 200.0, 600.0, 3600.0])
def test_no_budget_is_exceeded_by_two_percent_and_less_than_a_run_is_left(tmp_path, seconds, slots, of_time):
    found = search(tmp_path, seconds, slots, of_time)
    held_s = found.clock.now_s
    assert found.held_s == pytest.approx(slots * held_s)
    assert held_s <= 1.02 * seconds
    assert held_s >= 0.98 * seconds or (not found.was_spent and held_s > seconds - RUN_S)
    epochs = sum(len(trial.intermediate_values) for trial in found.all)
    assert epochs >= slots * int((seconds - LEAST_S) / EPOCH_S) * (seconds < LEAST_S + RUN_S), "each second is trained"


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_with_noisy_epochs_neither(tmp_path, slots):
    found = search(tmp_path, 900.0, slots, False, noise=0.2)
    assert 0.98 * 900.0 - RUN_S <= found.clock.now_s <= 1.02 * 900.0
    assert sum(trial.state == TrialState.COMPLETE for trial in found.all) >= 10 * slots
