"""Budgets in simulated time: of minutes, and such that pay for confirmations."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.budget.budget import KEPT_MARGIN, NO_ROOM_IN_BUDGET, Limits, together_s
from bigbatch.tune.budget.pace import SessionTimes
from bigbatch.tune.runs.confirm_rule import AFFORDABLE, ConfirmRule
from bigbatch.tune.runs.confirmation import ConfirmationFacts
from bigbatch.tune.runs.frontier import FrontierFacts
from bigbatch.tune.runs.objective import POINTS, Objective, Tolerance
from bigbatch.tune.runs.reported import Examples
from helpers.simulated_search import BATCH, BATCHES, EPOCHS, BudgetedSearch

FRONTIER = FrontierFacts(BATCH, BATCHES, examples=Examples(1000), objective=Objective(worst=0.1))


def facts(best: int = 1, seeds: int = 3, most_worker_s: float | None = None) -> ConfirmationFacts:
    rule = AFFORDABLE if best == 0 else ConfirmRule(best, seeds)
    return ConfirmationFacts(rule, 3, FRONTIER, most_worker_s)


def split(trials: list[FrozenTrial]) -> tuple[list[FrozenTrial], dict[int, list[FrozenTrial]]]:
    """The trials of the search, and of each confirmed one its confirmations."""
    confirmed = defaultdict(list)
    for trial in trials:
        if "confirms" in trial.user_attrs:
            confirmed[trial.user_attrs["confirms"]].append(trial)
    return [t for t in trials if "confirms" not in t.user_attrs], confirmed


def best_by_batch(searched: list[FrozenTrial], count: int) -> list[int]:
    """Written anew from the rule: of each batch the finished trials with the best values."""
    found = []
    for batch in BATCHES:
        done = [t for t in searched if t.state == TrialState.COMPLETE and t.params[BATCH] == batch]
        found += [t.number for t in sorted(done, key=lambda t: -t.values[0])[:count]]
    return sorted(found)


def search(tmp_path: Path, hours: float, confirm: ConfirmationFacts | None, **more: Any) -> BudgetedSearch:
    return BudgetedSearch(tmp_path / "s", Limits(device_s=hours * 3600), confirm, **more)


@pytest.mark.parametrize(("slots", "best", "seeds", "owned"), [(1, 1, 3, True), (2, 2, 2, False), (4, 1, 3, True)])
def test_the_search_ends_early_enough_and_all_that_was_asked_for_is_confirmed(tmp_path, slots, best, seeds, owned):
    """Runs of 55 s and 85 s. Without ``--trials`` only the budget ends the search."""
    times = {32: 16.0, 128: 10.0}
    found = search(tmp_path, slots * 0.5, facts(best, seeds), slots=slots, owned=owned, seconds=times.__getitem__)
    found.run()
    searched, confirmed = split(found.all)
    assert sorted(confirmed) == best_by_batch(searched, best) and len(confirmed) == 2 * best
    for runs in confirmed.values():
        assert [t.state for t in runs] == [TrialState.COMPLETE] * seeds
        assert [t.user_attrs["config"]["seed"] for t in runs] == list(range(4, 4 + seeds))
    first = min(t.number for runs in confirmed.values() for t in runs)
    assert all(t.number < first for t in searched), "nothing is searched once it is confirmed"
    assert found.manager.closed_by == NO_ROOM_IN_BUDGET and not found.was_spent
    assert found.said == [
        f"The rest of the budget is for {2 * best * seeds} confirmations: the search itself has ended."
    ]
    budget_s = slots * 0.5 * 3600
    assert found.held_s <= budget_s
    all_kept_s = KEPT_MARGIN * 2 * best * seeds * 85
    assert budget_s - found.held_s < slots * (85 + 10 + 8) + 0.05 * all_kept_s + 0.4 * all_kept_s / 2
    assert sum(t.state == TrialState.COMPLETE for t in searched) > 2 * best * seeds, (
        "most of the budget is for the search"
    )


@pytest.mark.parametrize(("slots", "seed"), [(1, 0), (3, 1)])
def test_with_noisy_epochs_no_more_than_two_percent_over_is_billed_and_nearly_all_is_confirmed(tmp_path, slots, seed):
    rng, times = random.Random(seed), {32: 16.0, 128: 10.0}
    found = search(
        tmp_path, 1.5, facts(1, 3), slots=slots, seconds=lambda batch: times[batch] * rng.lognormvariate(0, 0.2)
    ).run()
    searched, confirmed = split(found.all)
    done = sum(t.state == TrialState.COMPLETE for runs in confirmed.values() for t in runs)
    assert found.held_s <= 1.02 * 1.5 * 3600
    assert 6 - slots <= done <= 6 and sorted(confirmed) == best_by_batch(searched, 1)


def test_a_driver_that_is_killed_while_it_confirms_confirms_the_rest(tmp_path):
    whole = search(tmp_path / "whole", 0.5, facts(1, 3), on_disk=True).run()

    def in_the_middle(trials: list[FrozenTrial]) -> bool:
        ended = [t for t in trials if "confirms" in t.user_attrs and t.state.is_finished()]
        return len(ended) == 2

    killed = search(tmp_path / "killed", 0.5, facts(1, 3), on_disk=True).run(until=in_the_middle)
    begun = len(killed.all)
    again = search(tmp_path / "killed", 0.5, facts(1, 3), clock=killed.clock, on_disk=True).run()

    def made(trials: list[FrozenTrial]) -> list[object]:
        return [(t.state, t.params, t.values, *(t.user_attrs.get(n) for n in ("config", "confirms"))) for t in trials]

    assert made(again.all) == made(whole.all)
    assert begun < len(again.all) and again.held_s <= 1800


@pytest.mark.parametrize(("hours", "most", "confirmed_trials"), [(1.2, 330, 2), (0.6, 170, 1), (0.3, 90, 0)])
def test_the_default_confirms_what_its_part_of_the_budget_allows(tmp_path, hours, most, confirmed_trials):
    """Runs of 55 s, 50 of them measured: three seeds take 150 s. The answer is another trial than the best one."""
    wide = replace(facts(0, most_worker_s=float(most)), frontier=replace(FRONTIER, tolerance=Tolerance(5.0, POINTS)))
    found = search(tmp_path, hours, wide).run()
    searched, confirmed = split(found.all)
    assert len(confirmed) == confirmed_trials and all(len(runs) == 3 for runs in confirmed.values())
    assert set(confirmed) <= set(best_by_batch(searched, 1))
    assert 0.85 * hours * 3600 < found.held_s <= hours * 3600
    assert (found.manager.closed_by is not None) == (confirmed_trials > 0)


def test_runs_beside_each_other_take_as_long_as_when_they_are_played_second_by_second():
    rng = random.Random(4)
    for _ in range(50):
        runs, slots = [rng.randint(1, 30) for _ in range(rng.randint(1, 12))], rng.randint(1, 5)
        waiting, left, second = list(runs), list[int](), 0
        while waiting or left:
            while waiting and len(left) < slots:
                left.append(waiting.pop(0))
            second, left = second + 1, [one - 1 for one in left if one > 1]
        assert together_s(runs, slots) == second
    assert together_s([], 3) == 0 and EPOCHS == 5


RAY_S, START_S, END_S, EPOCH_S = 12.0, 15.0, 9.0, 10.0
TIMES = SessionTimes(ray_start_s=RAY_S, trial_start_s=START_S, ending_s=END_S)
LEAST_S = RAY_S + START_S + END_S
RUN_S = START_S + EPOCHS * EPOCH_S


def small_search(folder: Path, seconds: float, slots: int, of_time: bool, noise: float = 0.0) -> BudgetedSearch:
    """``seconds``: of the budget, for each device."""
    rng = random.Random(slots)
    limits = Limits(time_s=seconds) if of_time else Limits(device_s=slots * seconds)
    return BudgetedSearch(
        folder / "s", limits, None, slots=slots, ray_s=RAY_S, start_s=START_S, end_s=END_S, expected=TIMES,
        seconds=lambda batch: EPOCH_S * rng.lognormvariate(0, noise),
    ).run()  # fmt: skip


@pytest.mark.parametrize(("slots", "of_time"), [(1, True), (8, False)])
@pytest.mark.parametrize("seconds", [LEAST_S, LEAST_S + 25, 2 * LEAST_S, 200.0, 600.0])
def test_no_budget_is_exceeded_by_two_percent_and_less_than_a_run_is_left(tmp_path, seconds, slots, of_time):
    found = small_search(tmp_path, seconds, slots, of_time)
    held_s = found.clock.now_s
    assert found.held_s == pytest.approx(slots * held_s)
    assert held_s <= 1.02 * seconds
    assert held_s >= 0.98 * seconds or (not found.was_spent and held_s > seconds - RUN_S)
    epochs = sum(len(trial.intermediate_values) for trial in found.all)
    assert epochs >= slots * int((seconds - LEAST_S) / EPOCH_S) * (seconds < LEAST_S + RUN_S), "each second is trained"
