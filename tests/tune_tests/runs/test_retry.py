"""Failures that may be tried again, at a stop or by ``--retry-failed``; and the kinds of runs."""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.cluster.host.optuna_journal import read_journal
from bigbatch.cluster.job import options
from bigbatch.command import main
from bigbatch.tune.runs import retry
from bigbatch.tune.runs.run import (
    AnyTrial,
    Kind,
    Run,
    Runs,
    begun,
    confirmed_by,
    count_ended,
    earlier_of,
    kind_of,
    of_kind,
    replaced_trials,
    retried_trials,
    search_trials,
    trials_of_run,
)
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import BrokenSpace, make_bridge, number_of, record, reopen, run_out, set_space
from helpers.refusals import refused_command
from helpers.searches import TINY, Search, load

FULL = "OSError: No space left on device"


@pytest.mark.parametrize("how", ["reported", "died", "returned"])
@pytest.mark.parametrize("when", ["asked to end", "stopping"])
def test_what_fails_while_the_search_is_stopping_waits_for_the_resume(store, how, when):
    asked: list[bool] = []
    bridge = make_bridge(store, ending=lambda: bool(asked))
    first: Any = bridge.suggest("a")
    bridge.observe("a", {"records": [record(1, 0.5)]})
    asked.append(True)  # the signal reached the workers before Tune asked whether the search is over
    bridge.stopping = when == "stopping"
    if how == "reported":
        assert bridge.observe("a", {"records": [], "failure": "RuntimeError: connection closed by peer"})
    bridge.on_trial_complete("a", error=how == "died")
    assert [t.state for t in store.study.trials] == [TrialState.WAITING]
    store = reopen(store)
    bridge = make_bridge(store)
    bridge.recover()
    again: Any = bridge.suggest("b")
    assert (number_of(again), again["config"]) == (0, first["config"])


def test_validation_that_is_not_finite_is_a_fact_also_while_the_search_is_stopping(store):
    bridge = make_bridge(store, ending=lambda: True)
    bridge._may_start = lambda: True
    bridge.suggest("a")
    assert bridge.observe("a", {"records": [record(1, float("nan"))]})
    assert store.study.trials[0].state == TrialState.FAIL


def fail_some(store: StudyStore, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Trial 0 complete; 1 failed after two epochs, with a checkpoint; 2 without a valid configuration; 3 diverged."""
    bridge = make_bridge(store, trials=4, concurrency=1)
    tasks: list[Any] = []
    for name, records, failure in (
        ("a", [0.1, 0.2, 0.3, 0.4], None),
        ("b", [0.1, 0.5], FULL),
        ("bad", [], None),
        ("c", [0.1], "NonFiniteLossError: loss is nan in epoch 2"),
    ):
        if name == "bad":
            with monkeypatch.context() as patch:
                patch.setattr(bridge, "_configurations", bridge._configurations)
                set_space(bridge, BrokenSpace(KeyError("x")))
                bridge._ask()
            continue
        tasks.append(bridge.suggest(name))
        folder = store.checkpoint_folder(number_of(tasks[-1]))
        folder.mkdir(parents=True)
        (folder / "latest.pt").write_text(name)
        run_out(bridge, name, records)
        if failure:
            kind = "diverged" if name == "c" else "images"
            bridge.observe(name, {"records": [], "failure": failure, "failure_kind": kind})
    assert [t.state.name for t in store.study.trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    return tasks


def test_a_failed_trial_is_tried_again_with_its_parameters_and_checkpoint_and_counts_once(store, monkeypatch):
    tasks = fail_some(store, monkeypatch)
    store = reopen(store)
    assert retry.retry_failed(store) == {1: 4, 3: 5}
    assert count_ended(store.study.trials) == 1, "the complete one; the one without a configuration was none"
    assert retry.retry_failed(store) == {1: 4, 3: 5}, "once, however often it is asked"
    bridge = make_bridge(store, trials=3, concurrency=1)
    bridge.recover()
    assert bridge.finished == 1
    for name, number, task in (("r1", 4, tasks[1]), ("r3", 5, tasks[2])):
        again: Any = bridge.suggest(name)
        assert (number_of(again), again["config"]) == (number, task["config"])
        assert store.study.trials[number].params == store.study.trials[number - (3 if number == 4 else 2)].params
        latest = store.checkpoint_folder(number) / "latest.pt"
        assert latest.exists() == (number == 4), "from where one diverged it would diverge again"
        assert number != 4 or latest.read_text() == "b"
        assert not run_out(bridge, name, [0.6, 0.7, 0.8, 0.9])
    assert bridge.finished == 3 and bridge.suggest("x") == Searcher.FINISHED
    trials = store.study.trials
    assert count_ended(trials) == 3 and retried_trials(trials) == {1: 4, 3: 5}
    assert [earlier_of(t) for t in begun(trials)] == [None, None, None, 1, 3]
    store.refresh(force=True)
    rows = pq.read_table(store.folder / "trials.parquet").to_pylist()
    assert [r["retries"] for r in rows] == [None, None, None, 1, 3]


def test_a_retry_that_fails_can_be_tried_again_and_a_kill_in_between_loses_no_checkpoint(store, monkeypatch):
    fail_some(store, monkeypatch)
    monkeypatch.setattr(retry, "adopt_checkpoints", lambda store: None)  # killed before
    retry.retry_failed(store)
    monkeypatch.undo()
    store = reopen(store)
    bridge = make_bridge(store, trials=4, concurrency=1)
    bridge.recover()
    assert (store.checkpoint_folder(4) / "latest.pt").read_text() == "b"
    bridge.suggest("r")
    bridge.observe("r", {"records": [], "failure": FULL, "failure_kind": "disk"})
    store.drop_checkpoints()
    assert (store.checkpoint_folder(4) / "latest.pt").exists()
    assert retry.retry_failed(store) == {3: 5, 4: 6} and (store.checkpoint_folder(6) / "latest.pt").exists()
    assert count_ended(store.study.trials) == 1


def test_retry_failed_needs_resume_and_a_job_says_it_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "--resume" in refused_command(capsys, main, ["tune", "--retry-failed", "--dry-run"])
    chosen = options.JobOptions(arguments=("--study", "s", "--resume", "--retry-failed"))
    first, later = (options.driver_command(chosen, "d", "h:1", None, again) for again in (False, True))
    assert "--retry-failed" in first and "--retry-failed" not in later and "--resume" in later


@pytest.mark.exhaustive
def test_after_the_cause_is_gone_failed_trials_go_on_from_their_checkpoints(tiny_images, tiny_space, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(tiny_images, images)
    wanted = ("--space", tiny_space, "--data", images, *TINY, "--study", "s", "--max-epochs", 60, "--trials", 2)
    # By itself so small a set is decoded once, and no trial would meet the spoilt image.
    first = Search(*wanted, "--stopping", "none", "--set", "data.loader.name=ring", cwd=tmp_path)
    first.wait_for(r"trial 0 epoch 3/60")
    first.process.send_signal(signal.SIGINT)  # which writes checkpoints
    assert first.end() == 130
    search = Search("--resume", "--study", "s", cwd=tmp_path)
    search.wait_for(r"trial 0 resumed after epoch")
    spoilt = next((images / "val").rglob("*.png"))
    sound = spoilt.read_bytes()
    spoilt.write_bytes(b"no image")
    assert search.end() == 1
    assert re.search(r"tune/run.py --resume --study s .*--retry-failed", "".join(search.lines))
    failed = load(tmp_path / "runs" / "s").trials
    assert [t.state for t in failed] == [TrialState.FAIL] * 2 and "ImageError" in failed[0].user_attrs["ended_because"]
    spoilt.write_bytes(sound)
    again = Search("--resume", "--study", "s", "--retry-failed", cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    trials = load(tmp_path / "runs" / "s").trials
    assert [t.state.name for t in trials] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert [t.user_attrs.get("retries") for t in trials] == [None, None, 0, 1]
    assert all(len(t.intermediate_values) == 60 for t in trials[2:])
    assert trials[2].user_attrs["epoch/00060"]["resumed_from_epoch"] >= 3
    text = "".join(again.lines)
    assert "Tried again: trial 0 as trial 2, 1 as trial 3." in text and "2 of 2 trials ran to their end" in text


MADE: tuple[tuple[dict[str, object], TrialState, Kind, int | None], ...] = (
    ({}, TrialState.FAIL, Kind.SEARCH, None),
    ({}, TrialState.PRUNED, Kind.SEARCH, None),
    ({"retries": 0}, TrialState.PRUNED, Kind.RETRY, 0),
    ({"continues": 2}, TrialState.COMPLETE, Kind.CONTINUATION, 2),
    ({"confirms": 3, "confirmation_seed": 1}, TrialState.FAIL, Kind.CONFIRMATION, None),
    ({"confirms": 3, "confirmation_seed": 1, "retries": 4}, TrialState.COMPLETE, Kind.CONFIRMATION, 4),
    ({"refused": True}, TrialState.FAIL, Kind.SEARCH, None),
    ({"continues": "edited"}, TrialState.RUNNING, Kind.CONTINUATION, None),
)
"""Attributes and state of each trial, its kind, and the trial in whose place it counts."""


def test_a_run_of_the_journal_says_what_optunas_trial_says(tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal")))
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    for attrs, state, _, _ in MADE:
        trial = study.ask()
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        if state.is_finished():
            study.tell(trial, 0.5 if state == TrialState.COMPLETE else None, state=state)
    found = read_journal(tmp_path, "s", Run)
    assert found is not None and [trial.state for trial in found.trials] == [state for _, state, _, _ in MADE]
    for trials in (list[AnyTrial](study.trials), list[AnyTrial](found.trials)):
        assert [(kind_of(t), earlier_of(t)) for t in trials] == [(kind, earlier) for _, _, kind, earlier in MADE]
        assert replaced_trials(trials) == {0: 2, 2: 3, 4: 5}
        assert [t.number for t in trials_of_run(trials, 3)] == [3, 2, 0]
        assert [confirmed_by(t) for t in of_kind(trials, Kind.CONFIRMATION)] == [3, 3]
        assert [t.number for t in search_trials(trials)] == [0, 1, 2, 3, 6, 7]
        assert count_ended(trials) == 2, "trial 1, and trial 3 for 0 and 2"
    runs = Runs(found.trials)
    assert runs.ended == 2
    assert [run.number for run in runs.begun] == [0, 1, 2, 3, 4, 5, 7]


def test_a_journal_of_two_studies_gives_the_trials_of_the_named_one(tmp_path):
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal")))
    study = optuna.create_study(storage=journal, study_name="s", direction="minimize")
    for value in (0.3, 0.1, 0.2):
        study.tell(study.ask(), value)
    other = optuna.create_study(storage=journal, study_name="other", direction="maximize")
    other.tell(other.ask(), 0.01)
    found = read_journal(tmp_path, "s", Run)
    assert found is not None and [trial.value for trial in found.trials] == [0.3, 0.1, 0.2]
