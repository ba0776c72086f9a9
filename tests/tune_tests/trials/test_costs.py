"""What trials cost, what a budget or an allocation still admits, and how long an end waits."""

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.cluster.job.watch import TimeLeft
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.budget.budget import NO_ROOM_IN_BUDGET, Budget, Limits
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.models.protocol import TrialDecision
from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import PAUSED_ATTR, begun, trials_of_run
from bigbatch.tune.trials.admission import Admission, Deadline, end_of_allocation
from bigbatch.tune.trials.live_trials import LEAST_WAIT_S, MOST_WAIT_S, UNMEASURED_WAIT_S, longest_gap_s, stop_wait_s
from helpers.bridges import EPOCHS, make_bridge, number_of, record, reopen, run_out
from helpers.lone_studies import waiting_to_continue
from helpers.waiting import SetClock


def test_the_cost_of_a_trial_is_its_wall_time_times_its_workers_over_all_attempts(store, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(store.ledger, "_clock", lambda: now[0])
    bridge = make_bridge(store)
    bridge.workers = 4
    bridge.suggest("a")
    now[0] += 90.0
    assert store.ledger.held_s == pytest.approx(360.0)
    bridge.stopping = True
    bridge.on_trial_complete("a")  # interrupted
    now[0] += 5000.0
    bridge.stopping = False
    bridge.suggest("b")
    now[0] += 10.0
    run_out(bridge, "b", [0.1] * EPOCHS)
    assert store.study.trials[0].user_attrs["gpu_hours"] == pytest.approx((90 + 10) * 4 / 3600)
    assert store.ledger.held_s == pytest.approx(400.0)


def test_no_trial_starts_that_could_not_finish_an_epoch_before_the_allocation_ends(monkeypatch):
    now: list[float] = [5000.0]
    needed: list[float | None] = [None]
    monkeypatch.setattr("bigbatch.tune.trials.admission.time.time", lambda: now[0])
    deadline = Deadline(6000.0, lambda: needed[0])
    assert deadline.allows_a_trial(), "nothing was measured yet"
    needed[0] = 600.0
    now[0] = 5399.0
    assert deadline.allows_a_trial() and not deadline.refused
    now[0] = 5401.0
    assert not deadline.allows_a_trial() and deadline.refused
    assert Deadline(None, lambda: 1e9).allows_a_trial()


def test_where_an_epoch_is_longer_than_the_allocation_trials_start_and_go_on_by_checkpoints(monkeypatch):
    """A requeued search knows its epochs: it must not refuse its own interrupted trials, start after start."""
    now = [5000.0]
    monkeypatch.setattr("bigbatch.tune.trials.admission.time.time", lambda: now[0])
    deadline = Deadline(6000.0, lambda: 1001.0)
    assert deadline.allows_a_trial()
    now[0] = 5900.0
    assert deadline.allows_a_trial() and not deadline.refused, "a further one, in place of one that failed"
    now[0] = 6000.5
    assert not deadline.allows_a_trial() and deadline.refused


def test_the_end_of_the_allocation_is_a_number_or_refused():
    assert end_of_allocation({}) is None and end_of_allocation({"BIGBATCH_DEADLINE": "1763.5"}) == 1763.5
    with pytest.raises(ConfigError, match="soon"):
        end_of_allocation({"BIGBATCH_DEADLINE": "soon"})


def test_a_run_that_is_repeated_costs_what_all_its_trials_cost(store, monkeypatch):
    """The retry goes on from the checkpoint and sends its past again: hours add up, joules are counted once."""
    now = [1000.0]
    monkeypatch.setattr(store.ledger, "_clock", lambda: now[0])
    bridge = make_bridge(store, trials=1)
    bridge.suggest("a")
    bridge.runs(0)
    past = [record(epoch, 0.5, train_s=90.0 + epoch, gpu_energy_j=1000.0) for epoch in range(1, EPOCHS)]
    for one in past:
        now[0] += 100.0
        bridge.observe("a", {"records": [one]})
    bridge.fail("a", "ImageError: cannot read a.png", FailureKind.IMAGES)
    assert [t.state.name for t in store.study.trials] == ["FAIL"]
    retry.retry_failed(store)
    bridge = make_bridge(store, trials=1)
    bridge.recover()
    bridge.suggest("b")
    bridge.runs(1)
    for one in past:
        bridge.observe("b", {"records": [one]})
    now[0] += 100.0
    bridge.observe("b", {"records": [record(EPOCHS, 0.5, train_s=99.0, gpu_energy_j=1000.0)]})
    failed, again = store.study.trials
    assert (again.state.name, again.user_attrs["retries"]) == ("COMPLETE", 0)
    hours = [t.user_attrs["gpu_hours"] for t in (failed, again)]
    assert hours == [pytest.approx((EPOCHS - 1) * 100 / 3600), pytest.approx(100 / 3600)], "each its own part"
    run = trials_of_run(store.study.trials, again.number)
    assert [t.number for t in run] == [1, 0]
    assert retry.run_hours(store.ledger, run) == pytest.approx(EPOCHS * 100 / 3600)


EPOCH_S = 10.0


def budget_of(device_s: float, clock: SetClock, begun: float = 1000.0, pace: Pace | None = None) -> Budget:
    """One device is held from ``begun`` on."""
    return Budget(
        Limits(device_s=device_s), pace or Pace(), held_s=lambda: clock.now - begun, devices=lambda: 1, clock=clock,
        ending_s=0.0,
    )  # fmt: skip


def trains(bridge, ray_id: str, clock: SetClock, epochs: int, first: int = 1) -> None:
    for epoch in range(first, first + epochs):
        clock.now += EPOCH_S
        bridge.observe(ray_id, {"records": [record(epoch, 0.5, train_s=EPOCH_S)]})


def test_a_trial_that_could_not_end_in_time_waits_in_the_study_and_a_larger_budget_begins_it(store):
    clock = SetClock(1000.0)
    bridge = make_bridge(store, trials=9, admission=Admission(budget := budget_of(95.0, clock)))
    assert number_of(bridge.suggest("a")) == 0
    trains(bridge, "a", clock, EPOCHS)
    assert number_of(bridge.suggest("b")) == 1, "40 s of 95 are used, and a run takes 40"
    trains(bridge, "b", clock, 2)
    assert bridge.suggest("c") is None, "60 are used, and one runs"
    size = (store.folder / "optuna.journal").stat().st_size
    for _ in range(50):
        assert bridge.suggest("c") is None
    assert (store.folder / "optuna.journal").stat().st_size == size, "asking again writes nothing"
    trains(bridge, "b", clock, 2, first=3)
    assert bridge.suggest("c") == Searcher.FINISHED and budget.refused == NO_ROOM_IN_BUDGET
    trials = store.study.trials
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.WAITING]
    assert bridge.finished == 2 and [trial.number for trial in begun(trials)] == [0, 1], "it has not begun"
    store = reopen(store)
    again = make_bridge(store, trials=9, admission=Admission(budget_of(300.0, clock)))
    again.recover()
    assert number_of(again.suggest("d")) == 2
    assert store.study.trials[2].params == trials[2].params and "config" in store.study.trials[2].user_attrs
    store.close()


class PauseThenContinue:
    """Pauses trial 0 after its first epoch and continues it whenever it is asked."""

    def __init__(self, proposer) -> None:
        self.sampler = proposer.sampler

    def look(self, study, trial, epoch):
        return TrialDecision.PAUSE if trial.number == 0 else TrialDecision.GO_ON

    def to_continue(self, study, fits=None, lasts=None):
        paused = waiting_to_continue(study.get_trials(deepcopy=False))
        return paused[0] if paused and len(study.trials) > 2 else None

    def is_over(self, study):
        return True


def test_a_trial_goes_on_where_it_could_not_be_continued_after_a_pause(store):
    clock = SetClock(1000.0)
    bridge = make_bridge(store, trials=9, admission=Admission(budget := budget_of(45.0, clock)))
    bridge._strategy = PauseThenContinue(bridge._strategy)
    bridge.suggest("a")
    clock.now += 9.0  # it takes so long to start, and would again
    trains(bridge, "a", clock, 1)
    assert not bridge._live["a"].pausing, "26 s are left for three epochs of 10 s and a start"
    assert budget.refused is None and len(bridge._live) == 1, "its own question leaves no trace"
    trains(bridge, "a", clock, 2, first=2)
    assert store.study.trials[0].state == TrialState.RUNNING and PAUSED_ATTR not in store.study.trials[0].user_attrs


def test_the_longest_gap_is_a_step_with_what_an_epochs_end_adds():
    records = [
        record(1, 0.1, optimizer_steps=4, train_s=160.0, val_s=5.0, checkpoint_s=1.0),  # 40 s a step
        record(2, 0.1, optimizer_steps=8, skipped_steps=1, train_s=100.0, val_s=5.0, bn_s=3.0),
    ]
    assert longest_gap_s(records) == pytest.approx(160 / 4 + 5 + 1)
    assert longest_gap_s(records[1:]) == pytest.approx(100 / 9 + 8)
    assert longest_gap_s([]) is None


def test_a_trial_without_an_epoch_is_taken_for_as_slow_as_the_slowest_and_all_is_within_bounds():
    slow = [record(1, 0.1, optimizer_steps=1, train_s=40.0)]
    quick = [record(1, 0.1, optimizer_steps=100, train_s=1.0)]
    assert stop_wait_s([quick], [slow, quick], {}) == LEAST_WAIT_S
    assert stop_wait_s([quick, []], [slow, quick], {}) == pytest.approx(80)
    assert stop_wait_s([[]], [[]], {}) == UNMEASURED_WAIT_S
    assert stop_wait_s([[record(1, 0.1, optimizer_steps=1, train_s=1e5)]], [], {}) == MOST_WAIT_S


@pytest.mark.parametrize("margin_s", [0.0, 120.0, 600.0])
def test_in_a_job_the_wait_ends_before_the_job_kills_the_driver(margin_s):
    left = TimeLeft(None, margin_s, 30.0)
    env = left.environment()
    assert float(env["BIGBATCH_SAVE_S"]) <= max(60.0, margin_s - 30)
    wait = stop_wait_s([[record(1, 0.1, optimizer_steps=1, train_s=1e5)]], [], env)
    assert LEAST_WAIT_S <= wait < left.save_s
