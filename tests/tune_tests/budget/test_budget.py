"""What a budget admits, and when it is spent. Whole searches with one: ``trials/test_budget_for_confirmations.py``."""

from collections.abc import Sequence

import pytest

from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET, NO_ROOM_IN_TIME, TIME_SPENT, Budget, Limits
from bigbatch.tune.budget.pace import Pace, PaceKey, pace_key
from helpers.waiting import SetClock

SMALL, LARGE = ("net", 256, 32, 1.0), ("net", 8192, 32, 1.0)


def budget_of(
    limits: Limits, *, slots: int = 1, owned: bool = True, took: Sequence[tuple[PaceKey, int, float]] = (),
    start_s: float = 20.0,
) -> tuple[Budget, SetClock]:  # fmt: skip
    """A budget of so many devices after runs one after the other: of each its key, its epochs and their seconds."""
    clock = SetClock(1e6)
    budget = Budget(
        limits, Pace(), held_s=lambda: slots * (clock.now - 1e6) if owned else 0.0,
        devices=lambda: slots if owned else None, clock=clock,
    )  # fmt: skip
    for number, (key, epochs, seconds) in enumerate(took):
        budget.begins(number, key, epochs, 1)
        clock.now += start_s
        for _ in range(epochs):
            clock.now += seconds
            budget.epoch_ended(number, seconds)
        budget.ends(number)
    return budget, clock


def test_a_shorter_piece_of_work_is_admitted_where_a_whole_run_is_not():
    budget, clock = budget_of(Limits(device_s=3600), took=[(SMALL, 10, 60.0)])  # 620 s; 2,972 s are left before the end
    assert budget.admits(SMALL, 49, 1) and not budget.admits(SMALL, 50, 1)
    assert budget.refused == NO_ROOM_IN_BUDGET
    assert budget.admits(SMALL, 5, 1) and budget.refused is None
    clock.now += 2973
    assert budget.spent() == BUDGET_SPENT and not budget.admits(SMALL, 1, 1)


def test_each_key_has_its_own_time_and_an_unknown_one_the_slowest():
    budget, _ = budget_of(Limits(device_s=7200), took=[(SMALL, 10, 100.0), (LARGE, 10, 10.0)], start_s=0.0)  # 1,100 s
    assert budget.admits(LARGE, 600, 1) and not budget.admits(LARGE, 620, 1)
    other = ("net", 1024, 32, 1.0)
    assert budget.admits(other, 60, 1) and not budget.admits(other, 62, 1)


def test_idle_devices_of_ones_own_are_billed_and_those_of_others_are_not():
    """One trial of 1,000 s on 8 devices costs 8,000 device seconds there, and elsewhere 1,000 of each worker."""
    own, _ = budget_of(Limits(device_s=7900), slots=8)
    own.pace.add_epoch(SMALL, 100.0)
    assert not own.admits(SMALL, 10, 1)
    others, clock = budget_of(Limits(device_s=7900), owned=False)
    others.pace.add_epoch(SMALL, 100.0)
    for number in range(3):
        assert others.admits(SMALL, 10, 2)
        others.begins(number, SMALL, 10, 2)
    assert not others.admits(SMALL, 10, 2) and others.admits(SMALL, 10, 1), "3 × 2 × 1,000 s are promised"
    clock.now += 500.0
    assert others.admits(SMALL, 10, 2), "half of them is left"
    clock.now -= 500.0
    others.ends(0)
    assert others.admits(SMALL, 10, 2)


def test_a_time_budget_begins_with_the_session_and_keeps_its_whole_end(tmp_path):
    """Ray took 30 s to start before the budget was made; the end takes 8 s, however small the budget is."""
    clock = SetClock(1e6)
    budget = Budget(
        Limits(time_s=60.0), Pace(), held_s=lambda: 0.0, devices=lambda: 1, clock=clock, began=clock.now - 30.0
    )
    clock.now += 21.5
    assert budget.spent() is None
    clock.now += 1
    assert budget.spent() == TIME_SPENT


@pytest.mark.parametrize("limits", [Limits(device_s=40.0), Limits(time_s=40.0)])
def test_a_first_trial_is_begun_only_if_its_start_fits(limits):
    """Nothing was measured in this session, but a start took 25 s in an earlier one; the end takes 8 s."""
    clock = SetClock(1e6)
    began = clock.now
    budget = Budget(
        limits, Pace(start_s=25.0), held_s=lambda: clock.now - began, devices=lambda: 1, clock=clock, began=began
    )
    clock.now += 6.0
    assert budget.admits_any() and budget.admits(SMALL, 3, 1)
    clock.now += 2.0
    assert not budget.admits_any() and not budget.admits(SMALL, 3, 1)
    assert budget.refused == (NO_ROOM_IN_TIME if limits.device_s is None else NO_ROOM_IN_BUDGET)


def test_the_key_is_what_makes_trials_equally_fast():
    config = {"model": {"name": "resnet50"}, "batch": {"global_size": 512}, "data": {"image_size": 64}, "seed": 3}
    assert pace_key(config) == pace_key({**config, "seed": 4})
    assert pace_key(config) != pace_key({**config, "batch": {"global_size": 1024}})
    assert pace_key(config) != pace_key({**config, "data": {"image_size": 64, "subset": 0.1}})
    assert pace_key({}) == pace_key({"model": "damaged"}) == (None, None, None, None)
