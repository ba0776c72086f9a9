"""What trials cost, how long they take, and whether another still fits the allocation."""

from __future__ import annotations

import pytest

from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import trials_of_run
from bigbatch.tune.trials import admission
from bigbatch.tune.trials.admission import Deadline, FirstResultTimes, allocation_end, end_of_allocation
from helpers.bridges import EPOCHS, make_bridge, record, run_out


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


def test_a_trial_that_waits_for_room_costs_nothing_until_its_workers_start(store, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(store.ledger, "_clock", lambda: now[0])
    bridge = make_bridge(store)
    bridge._clock = lambda: now[0]
    bridge.suggest("a")
    for _ in range(20):
        bridge.waits(0, now[0])
        now[0] += 30.0
    bridge.waits(0, now[0])
    now[0] += 8.0  # room was found; its worker starts
    bridge.runs(0)
    now[0] += 100.0
    run_out(bridge, "a", [0.1] * EPOCHS)
    assert store.study.trials[0].user_attrs["gpu_hours"] == pytest.approx(108 / 3600)


def test_the_time_to_a_first_result_is_not_that_of_a_trial_that_was_started_again(store, monkeypatch):
    """900 s: a node was lost before its first epoch, or it waited for its place. The end of an allocation must not
    idle for as long."""
    now = [1000.0]
    bridge = make_bridge(store, trials=9)
    bridge._clock = lambda: now[0]
    assert bridge.first_result_s() is None
    for ray_id, seconds in (("a", 40.0), ("b", 25.0), ("c", 900.0), ("d", 900.0), ("e", 38.0)):
        bridge.suggest(ray_id)
        now[0] += seconds
        for epoch in range(1, EPOCHS + 1):
            bridge.observe(ray_id, {"records": [record(epoch, 0.5, train_s=7.0, val_s=1.5)]})
            now[0] += 300.0  # later epochs do not count
    assert bridge.first_result_s() == pytest.approx(40.0), "the median of the start-ups, and an epoch"
    fresh = make_bridge(store, trials=9)  # as after a requeue: only the epochs are known
    assert fresh.first_result_s() == pytest.approx(8.5)


def test_no_trial_starts_that_could_not_finish_an_epoch_before_the_allocation_ends(monkeypatch):
    now: list[float] = [5000.0]
    needed: list[float | None] = [None]
    monkeypatch.setattr("bigbatch.tune.trials.admission.time.time", lambda: now[0])
    deadline = Deadline(lambda: 6000.0, lambda: needed[0])
    assert deadline.allows_a_trial(), "nothing was measured yet"
    needed[0] = 600.0
    now[0] = 5399.0
    assert deadline.allows_a_trial() and not deadline.refused
    now[0] = 5401.0
    assert not deadline.allows_a_trial() and deadline.refused
    assert Deadline(lambda: None, lambda: 1e9).allows_a_trial()


def test_where_an_epoch_is_longer_than_the_allocation_trials_start_and_go_on_by_checkpoints(monkeypatch):
    """A requeued search knows its epochs: it must not refuse its own interrupted trials, start after start."""
    now = [5000.0]
    monkeypatch.setattr("bigbatch.tune.trials.admission.time.time", lambda: now[0])
    deadline = Deadline(lambda: 6000.0, lambda: 1001.0)
    assert deadline.allows_a_trial()
    now[0] = 5900.0
    assert deadline.allows_a_trial() and not deadline.refused, "a further one, in place of one that failed"
    now[0] = 6000.5
    assert not deadline.allows_a_trial() and deadline.refused


def test_the_end_of_the_allocation_is_a_number_or_refused():
    assert end_of_allocation({}) is None and end_of_allocation({"BIGBATCH_DEADLINE": "1763.5"}) == 1763.5
    with pytest.raises(ConfigError, match="soon"):
        end_of_allocation({"BIGBATCH_DEADLINE": "soon"})


def test_the_slowest_kind_of_trials_counts_and_no_epoch_that_hung(store):
    times = FirstResultTimes([])
    small, large = ({"batch": {"global_size": size}} for size in (128, 4096))
    for config, seconds in ((small, 20.0), (large, 50.0)):
        for epoch in range(5):
            one = record(epoch + 1, 0.5, train_s=1800.0 if epoch == 2 else seconds)  # the file system hung
            times.add_epoch(config, one, since_start_s=seconds + 10.0 if epoch == 0 else None)
    assert times.expected_s() == pytest.approx(60.0)


def test_an_end_that_slurm_has_moved_counts_for_the_next_trial(tmp_path, monkeypatch):
    """``scontrol update TimeLimit`` reaches the job's record; the driver was started with the earlier end."""
    env = {"BIGBATCH_DEADLINE": "6000", "BIGBATCH_JOB_FOLDER": str(tmp_path)}
    monkeypatch.setattr(admission, "READ_EVERY_S", 0.0)
    now = [5000.0]
    monkeypatch.setattr("bigbatch.tune.trials.admission.time.time", lambda: now[0])
    deadline = Deadline(allocation_end(env), lambda: 600.0)
    assert deadline.allows_a_trial(), "the record is not there yet"
    now[0] = 5500.0
    write_json(tmp_path / "job.json", {"deadline": 9600.0})
    assert deadline.allows_a_trial()
    (tmp_path / "job.json").write_text("{")
    assert deadline.allows_a_trial(), "what was read last counts"
    write_json(tmp_path / "job.json", {"deadline": None})
    now[0] = 99_000.0
    assert deadline.allows_a_trial(), "it has no end any more"
    write_json(tmp_path / "job.json", {"deadline": 99_500.0})
    assert not deadline.allows_a_trial() and deadline.refused


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
    assert sum(store.ledger._session.energy.trials_gpu_j.values()) == pytest.approx(EPOCHS * 1000.0)
