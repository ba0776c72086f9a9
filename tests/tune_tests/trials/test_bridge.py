"""The bridge against a real Optuna study; Ray's side is played by calling what Tune calls."""

import gc
import io
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.tune.console.display import PlainLines, SearchProgress
from bigbatch.tune.search.tuner import StopWhen
from bigbatch.tune.trials.bridge import OptunaBridge
from helpers.bridges import EPOCHS, Recorder, make_bridge, number_of, record, reopen, run_out


def test_a_trial_that_runs_to_its_end_is_complete_with_all_it_reported(store):
    watcher = Recorder()
    bridge = make_bridge(store, observers=[watcher])
    task: Any = bridge.suggest("ray-a")
    assert task["config"]["seed"] == 3 and number_of(task) == 0
    assert not run_out(bridge, "ray-a", [0.1, 0.2, 0.3, 0.4])
    bridge.on_trial_complete("ray-a")
    trial = reopen(store).study.trials[0]
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.4)
    assert trial.intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert trial.user_attrs["ray_trial_id"] == "ray-a"
    assert trial.user_attrs["epoch/00002"]["val_top1"] == 0.2
    assert watcher.events[0] == ("started", 0, "RUNNING") and watcher.events[-1] == ("ended", 0, "COMPLETE")


def test_an_ended_trial_that_a_display_keeps_does_not_keep_optunas(store):
    """Of 10,000 trials these were 60 MB."""
    progress = SearchProgress(2, 1, {})
    bridge = make_bridge(store, observers=[PlainLines(progress, io.StringIO())])
    ends: dict[str, Callable[..., object]] = {"a": partial(run_out, values=[0.1] * EPOCHS), "b": OptunaBridge.put_back}
    for number, (name, end) in enumerate(ends.items()):
        bridge.suggest(name)
        trial = weakref.ref(bridge._live[name].trial)
        end(bridge, name)
        store.study.sampler = optuna.samplers.RandomSampler()  # that of the trial holds it, until the next one
        gc.collect()
        assert trial() is None and number in progress.trials


def test_an_interrupted_trial_waits_with_its_parameters_and_is_taken_up_first(store):
    bridge = make_bridge(store)
    first: Any = bridge.suggest("ray-a")
    bridge.observe("ray-a", {"records": [record(1, 0.5)]})
    bridge.stopping = True
    bridge.on_trial_complete("ray-a")
    assert store.study.trials[0].state == TrialState.WAITING
    store = reopen(store)
    bridge = make_bridge(store)
    bridge.recover()
    again: Any = bridge.suggest("ray-b")
    assert number_of(again) == 0 and again["config"] == first["config"]
    # its past is reported again and counted once
    assert not bridge.observe("ray-b", {"records": [record(1, 0.5), record(2, 0.6)]})
    run = store.study.trials[0]
    assert run.intermediate_values == {1: 0.5, 2: 0.6} and run.user_attrs["attempts"] == 2
    assert len(store.study.trials) == 1


def test_it_suggests_as_many_as_were_asked_for_and_no_more_at_once_than_fit(store):
    bridge = make_bridge(store, trials=3, concurrency=2)
    assert isinstance(bridge.suggest("a"), dict) and isinstance(bridge.suggest("b"), dict)
    assert bridge.suggest("c") is None
    run_out(bridge, "a", [0.1] * EPOCHS)
    assert isinstance(bridge.suggest("c"), dict)
    assert bridge.suggest("d") is None, "the processes of the last ones may die: then they are repeated"
    for name in "bc":
        run_out(bridge, name, [0.1] * EPOCHS)
    assert bridge.suggest("d") == Searcher.FINISHED


def test_the_end_waits_for_trials_that_train_and_not_for_those_that_only_start(store, tmp_path):
    """A trial whose workers have not reported has nothing to save, however long they would still start."""
    bridge = make_bridge(store)
    bridge.suggest("ray-a")
    stop = StopWhen(bridge, lambda: True, tmp_path / "stop-a")
    assert stop.stop_all() and (tmp_path / "stop-a").exists()
    bridge.stopping = False
    run_out(bridge, "ray-a", [0.1])
    assert not StopWhen(bridge, lambda: True, tmp_path / "stop-b").stop_all(), "it writes a checkpoint first"
    bridge.release()
    assert store.study.trials[0].state == TrialState.WAITING


def test_attempts_that_are_killed_before_their_first_epoch_are_counted(store, monkeypatch):
    """Five kills, four workers, an hour each: 20 hours. The last heartbeat says up to when; see ``Ledger``."""
    for _ in range(5):
        now = [0.0]
        monkeypatch.setattr(store.ledger, "_clock", lambda now=now: now[0])
        bridge = make_bridge(store)
        bridge.recover()
        bridge.workers = 4
        assert number_of(bridge.suggest("a")) == 0
        now[0] += 3600.0
        store.ledger.beat()
        store = reopen(store)  # the bridge is told nothing more: kill -9
    bridge = make_bridge(store)
    bridge.workers = 1  # --resume --workers 1 counts the past as it was
    bridge.recover()
    assert store.study.trials[0].user_attrs["gpu_hours"] == pytest.approx(20.0, abs=1e-3)
    assert store.ledger.held_s == pytest.approx(20 * 3600, abs=1)
    store.close()


class Faulty(Recorder):
    """A tracker that nobody can reach."""

    def trial_started(self, trial):
        raise ConnectionError("no route")


def test_an_observer_that_fails_is_left_behind_and_the_search_goes_on(store, capsys):
    watcher = Recorder()
    bridge = make_bridge(store, observers=[Faulty(), watcher], concurrency=1)
    bridge.suggest("a")
    run_out(bridge, "a", [0.1] * EPOCHS)
    assert store.study.trials[0].state == TrialState.COMPLETE and len(watcher.events) == EPOCHS + 2
    warnings = capsys.readouterr().err.strip().splitlines()
    assert len(warnings) == 1 and "without Faulty" in warnings[0] and "no route" in warnings[0]


def test_tables_that_cannot_be_written_end_no_search(store, monkeypatch, capsys):
    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "refresh", full)
    bridge = make_bridge(store, concurrency=1)
    for name in "ab":
        bridge.suggest(name)
        run_out(bridge, name, [0.1] * EPOCHS)
    assert [t.state for t in store.study.trials] == [TrialState.COMPLETE] * 2
    assert capsys.readouterr().err.count("No space left") == 1
