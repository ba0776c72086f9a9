"""Budgets in simulated time: what is admitted, when it ends, and how much it has then cost."""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from bigbatch.tune.budget.budget import BUDGET_SPENT, NO_ROOM_IN_BUDGET, NO_ROOM_IN_TIME, TIME_SPENT, Budget, Limits
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.budget.pace import Pace, pace_key
from helpers.waiting import SetClock

SMALL, LARGE = ("net", 256, 32, 1.0), ("net", 8192, 32, 1.0)


@dataclass
class Search:
    """A search of equal slots in simulated time; ``seconds`` is how long an epoch of a trial really takes."""

    ledger: Ledger
    clock: SetClock
    budget: Budget
    slots: int
    seconds: Callable[[tuple], float]
    workers: int = 1
    start_s: float = 20.0
    end_s: float = 8.0
    started: int = 0
    finished: int = 0
    cut: int = 0
    why: str = ""
    events: list[tuple] = field(default_factory=list)

    def run(self, work: Iterable[tuple[tuple, int]]) -> None:
        """Offer ``work``, each a key and its epochs, until the budget has no room and nothing runs."""
        waiting, order = iter(work), itertools.count()
        next_up = next(waiting, None)
        while True:
            while next_up is not None and len(self.events) < self.slots and self.budget.admits(*next_up, self.workers):
                key, epochs = next_up
                self.ledger.begin(self.started, self.workers)
                self.budget.begins(self.started, key, epochs, self.workers)
                at = self.clock.now + self.start_s + self.seconds(key)
                heapq.heappush(self.events, (at, next(order), self.started, key, epochs - 1))
                self.started, next_up = self.started + 1, next(waiting, None)
            if not self.events:
                break
            at, _, number, key, left = heapq.heappop(self.events)
            while self.clock.now < at:  # Tune asks several times a second
                self.clock.now = min(at, self.clock.now + 1.0)
                if self.budget.spent():
                    self.why, self.cut = str(self.budget.spent()), len(self.events) + 1
                    self.clock.now += self.end_s
                    return self.ledger.close()
            self.budget.epoch_ended(number, self.seconds(key))
            if left:
                heapq.heappush(self.events, (at + self.seconds(key), next(order), number, key, left - 1))
            else:
                self.finished += 1
                self.ledger.end(number)
                self.budget.ends(number)
        self.why = self.budget.refused or ""
        self.clock.now += self.end_s
        return self.ledger.close()


def search(tmp_path, limits: Limits, *, slots: int, owned: bool = True, seconds=lambda key: 60.0, **more) -> Search:
    clock = SetClock(1e6)
    ledger = Ledger(tmp_path / "ledger", clock)
    workers = more.get("workers", 1)
    ledger.hold(slots * workers if owned else None)
    devices, pace = (lambda: slots * workers if owned else None), more.pop("pace", Pace())
    budget = Budget(limits, pace, held_s=lambda: ledger.held_s, devices=devices, clock=clock)
    return Search(ledger, clock, budget, slots, seconds, **more)


def test_a_search_of_many_trials_ends_within_two_percent_and_cuts_none_off(tmp_path):
    """8 slots, runs of 10 epochs of a minute, 100 hours: the last trials that are admitted fill what is left."""
    found = search(tmp_path, Limits(device_s=100 * 3600), slots=8, workers=2)
    found.run(itertools.repeat((SMALL, 10)))
    assert found.why == NO_ROOM_IN_BUDGET and found.cut == 0
    assert found.finished == found.started == 8 * 36, "620 s each, and 22,500 s of each device"
    held_h = found.ledger.held_s / 3600
    assert 0.97 * 100 < held_h <= 100
    run_s = 10 * 60 + 20
    assert (100 - held_h) * 3600 / 16 < run_s + 8, "another trial would not have fitted"


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("owned", [True, False])
def test_whatever_the_noise_no_more_than_two_percent_over_is_billed(tmp_path, slots, owned):
    rng = random.Random(slots)
    times = {SMALL: 40.0, LARGE: 25.0}
    limits, noisy = Limits(device_s=30 * 3600), lambda key: times[key] * rng.lognormvariate(0, 0.2)
    found = search(tmp_path, limits, slots=slots, owned=owned, seconds=noisy)
    found.run((rng.choice([SMALL, LARGE]), rng.choice([3, 12])) for _ in itertools.count())
    assert found.ledger.held_s <= 1.02 * 30 * 3600
    assert found.ledger.held_s >= 0.95 * 30 * 3600


def test_first_trials_of_unknown_length_are_stopped_when_it_is_spent_with_the_time_that_takes(tmp_path):
    found = search(tmp_path, Limits(device_s=4 * 3600), slots=4)
    found.run(itertools.repeat((SMALL, 1000)))
    assert (found.why, found.cut, found.started) == (BUDGET_SPENT, 4, 4)
    assert 0.98 * 4 * 3600 <= found.ledger.held_s <= 1.001 * 4 * 3600, "the end itself is inside"


def test_a_shorter_piece_of_work_is_admitted_where_a_whole_run_is_not(tmp_path):
    found = search(tmp_path, Limits(device_s=3600), slots=1)
    found.run([(SMALL, 10)])  # 620 s; 2,972 s are left before the end's 8 s
    assert found.budget.admits(SMALL, 48, 1) and not found.budget.admits(SMALL, 50, 1)
    assert found.budget.refused == NO_ROOM_IN_BUDGET
    assert found.budget.admits(SMALL, 5, 1) and found.budget.refused is None


def test_each_key_has_its_own_time_and_an_unknown_one_the_slowest(tmp_path):
    times = {SMALL: 100.0, LARGE: 10.0}
    found = search(tmp_path, Limits(device_s=7200), slots=1, seconds=times.__getitem__, start_s=0.0)
    found.run([(SMALL, 10), (LARGE, 10)])  # 1,100 s
    assert found.budget.admits(LARGE, 600, 1) and not found.budget.admits(LARGE, 620, 1)
    other = ("net", 1024, 32, 1.0)
    assert found.budget.admits(other, 60, 1) and not found.budget.admits(other, 62, 1)


def test_idle_devices_of_ones_own_are_billed_and_those_of_others_are_not(tmp_path):
    """One trial of 1,000 s on 8 devices costs 8,000 device seconds there, and 1,000 on a cluster of others."""
    pace = Pace()
    pace.add_epoch(SMALL, 100.0)
    own = search(tmp_path / "own", Limits(device_s=7900), slots=8, pace=pace)
    assert not own.budget.admits(SMALL, 10, 1)
    others = search(tmp_path / "others", Limits(device_s=7900), slots=8, pace=pace, owned=False)
    for number in range(7):
        assert others.budget.admits(SMALL, 10, 1)
        others.budget.begins(number, SMALL, 10, 1)
    assert not others.budget.admits(SMALL, 10, 1), "7 × 1,000 s are promised"
    others.budget.ends(0)
    assert others.budget.admits(SMALL, 10, 1)


def test_another_trial_beside_a_slow_one_costs_nothing_more(tmp_path):
    """The first trial would overrun the budget and will be stopped; meanwhile the second slot is billed too."""
    found = search(tmp_path, Limits(device_s=2 * 3600), slots=2)
    found.budget.pace.add_epoch(LARGE, 500.0)
    found.budget.pace.add_epoch(SMALL, 60.0)
    found.budget.begins(0, LARGE, 100, 1)
    assert found.budget.admits(SMALL, 10, 1)
    assert not found.budget.admits(LARGE, 10, 1)


def test_a_time_budget_admits_by_the_same_rule(tmp_path):
    found = search(tmp_path, Limits(time_s=3600), slots=4)
    found.run(itertools.repeat((SMALL, 10)))
    assert found.why == NO_ROOM_IN_TIME and found.cut == 0
    assert found.finished == 4 * math.floor((3600 - 8) / 620)
    cut = search(tmp_path / "2", Limits(time_s=3600), slots=4)
    begun = cut.clock.now
    cut.run(itertools.repeat((SMALL, 1000)))
    assert cut.why == TIME_SPENT and 3598 <= cut.clock.now - begun <= 3601


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


def test_the_first_start_counts_from_the_budget_and_without_the_wait_for_devices():
    clock = SetClock(1e6)
    budget = Budget(Limits(), Pace(), held_s=lambda: 0.0, devices=lambda: 1, clock=clock)
    clock.now += 4.0  # Ray Tune starts
    budget.begins(0, SMALL, 3, 1)
    clock.now += 100.0
    budget.begins(0, SMALL, 3, 1)  # there were no devices before
    clock.now += 12.0 + 60.0
    assert budget.first_start_s is None
    budget.epoch_ended(0, 60.0)
    assert budget.first_start_s == pytest.approx(16.0)
    budget.begins(1, SMALL, 3, 1)
    clock.now += 99.0
    budget.epoch_ended(1, 60.0)
    assert budget.first_start_s == pytest.approx(16.0), "the first trial's"


def test_without_limits_everything_is_admitted(tmp_path):
    found = search(tmp_path, Limits(), slots=1)
    found.clock.now += 1e9
    assert found.budget.admits(SMALL, 10**6, 512) and found.budget.spent() is None and found.budget.admits_any()


def test_nothing_is_asked_for_once_not_even_the_shortest_epoch_fits(tmp_path):
    found = search(tmp_path, Limits(device_s=1000.0), slots=1)
    found.run([(SMALL, 10)])
    assert found.budget.admits_any()
    found.ledger.hold(1)
    found.clock.now += 315
    assert found.budget.spent() is None and not found.budget.admits_any()


def test_what_has_waited_begins_again_and_start_ups_are_measured(tmp_path):
    found = search(tmp_path, Limits(device_s=10_000.0), slots=1)
    found.budget.begins(0, SMALL, 10, 1)
    found.clock.now += 500  # no resources
    found.budget.begins(0, SMALL, 10, 1)
    found.clock.now += 30 + 100
    found.budget.epoch_ended(0, 100.0)
    assert found.budget.pace.start_s == pytest.approx(30)
    found.clock.now += 110
    found.budget.epoch_ended(0, 100.0)
    assert found.budget.pace.start_s == pytest.approx(30), "only first epochs tell of a start"


def test_the_key_is_what_makes_trials_equally_fast():
    config = {"model": {"name": "resnet50"}, "batch": {"global_size": 512}, "data": {"image_size": 64}, "seed": 3}
    assert pace_key(config) == pace_key({**config, "seed": 4})
    assert pace_key(config) != pace_key({**config, "batch": {"global_size": 1024}})
    assert pace_key(config) != pace_key({**config, "data": {"image_size": 64, "subset": 0.1}})
    assert pace_key({}) == pace_key({"model": "damaged"}) == (None, None, None, None)


def test_an_unmeasured_run_of_more_or_larger_images_is_taken_to_be_longer() -> None:
    """Four times the images take four times as long, twice the side four times; fewer are not taken to be faster."""
    pace = Pace()
    pace.add_epoch(("resnet18", 256, 16, 0.25), 3.0)
    assert pace.epoch_s(("resnet18", 256, 16, 1.0)) == 12.0
    assert pace.epoch_s(("resnet18", 256, 32, 0.25)) == 12.0
    assert pace.epoch_s(("resnet18", 256, 8, 0.25)) == 3.0
    pace.add_epoch(("resnet18", 256, 16, 1.0), 10.0)
    assert pace.epoch_s(("resnet18", 256, 16, 1.0)) == 10.0, "measured"
