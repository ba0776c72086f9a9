"""How long a search waits for its trials when it ends early, and that it says so."""

from __future__ import annotations

import shutil

import pytest

from bigbatch.cluster.job.grant import TimeLeft
from bigbatch.tune.search.tuner import StopWhen
from bigbatch.tune.trials.live_trials import LEAST_WAIT_S, MOST_WAIT_S, UNMEASURED_WAIT_S, longest_gap_s, stop_wait_s
from helpers.bridges import EPOCHS, Recorder, make_bridge, number_of, record, run_out


class Lines(Recorder):
    """An observer that shows lines."""

    def search_said(self, text: str) -> None:
        self.events.append(("line", -1, text))


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
    env = left.environment(None)
    assert float(env["BIGBATCH_SAVE_S"]) <= max(60.0, margin_s - 30)
    wait = stop_wait_s([[record(1, 0.1, optimizer_steps=1, train_s=1e5)]], [], env)
    assert LEAST_WAIT_S <= wait < left.save_s


def test_trials_of_long_steps_get_the_time_of_their_steps_and_the_log_says_so(store, monkeypatch, tmp_path):
    now = [1000.0]
    monkeypatch.setattr("bigbatch.tune.search.tuner.time.monotonic", lambda: now[0])
    lines = Lines()
    bridge = make_bridge(store, observers=[lines])
    bridge.suggest("a")
    bridge.observe("a", {"records": [record(1, 0.5, optimizer_steps=2, train_s=60.0)]})
    stop = StopWhen(bridge, lambda: True, tmp_path / ".stop")
    assert not stop.stop_all() and (tmp_path / ".stop").exists()
    now[0] += 45
    assert not stop.stop_all(), "a step takes 30 s"
    now[0] += 20
    assert stop.stop_all() and stop.stop_all()
    said = [text for event, _, text in lines.events if event == "line"]
    assert len(said) == 2 and "1 running trial(s)" in said[0] and "up to 1:00" in said[0] and "did not stop" in said[1]


def test_nothing_is_waited_for_where_nothing_runs(store, tmp_path):
    lines = Lines()
    assert StopWhen(make_bridge(store, observers=[lines]), lambda: True, tmp_path / ".stop").stop_all()
    assert lines.events == []


def test_each_checkpoint_folder_is_removed_once_over_a_whole_search(store, monkeypatch):
    removed: list[str] = []
    remove = shutil.rmtree
    monkeypatch.setattr(
        "bigbatch.tune.storage.store.shutil.rmtree", lambda path, **more: (removed.append(str(path)), remove(path))
    )
    bridge = make_bridge(store, trials=40, concurrency=1)
    for i in range(40):
        folder = store.checkpoint_folder(number_of(bridge.suggest(f"r{i}")))
        folder.mkdir(parents=True)
        run_out(bridge, f"r{i}", [i % 7 / 10] * EPOCHS)
    assert len(removed) == len(set(removed)) == 39
