"""Whether a start of a job was of use to its study, with studies as they are left on the disk."""

import os
from pathlib import Path

import pytest

from bigbatch.cluster.job import useful_start
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import make_bridge, record

EPOCH = '{"op_code": 8, "trial_id": 0, "user_attr": {"epoch/00001": {"train_s": %g, "val_s": 10.0}}}\n'


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The clock, seconds since the epoch."""
    clock = [10_000.0]
    monkeypatch.setattr(useful_start.time, "time", lambda: clock[0])
    return clock


def checkpoint(study: Path, number: int, step: int) -> None:
    """As a trial writes one within an epoch."""
    CheckpointFolder(study / "checkpoints" / f"trial-{number:04d}", 20.0).save({"progress": {"step": step}})


def test_a_start_is_known_to_be_useful_before_its_end(tmp_path, monkeypatch):
    """Its batch script may be killed with its node."""
    now = [100.0]
    monkeypatch.setattr(useful_start.time, "monotonic", lambda: now[0])
    start = useful_start.JobStart(tmp_path, None, 120.0)
    now[0] += 60.0
    assert not start.is_useful_by_now()
    (tmp_path / "optuna.journal").write_text(EPOCH % 1.0)
    assert not start.is_useful_by_now(), "it has just looked"
    now[0] += 60.0
    assert start.is_useful_by_now()


def test_a_limit_that_was_moved_may_be_too_short_for_another_start(tmp_path, now):
    """Slurm keeps it when the job is requeued, and a start with less than a minute before --margin is refused."""
    start = useful_start.JobStart(tmp_path, now[0] + 600.0, 120.0)
    for end in (now[0] + 600.0, now[0] + 180.0, None):
        start.ends_at = end
        assert start.too_short_for_another() is None
    start.ends_at = now[0] + 179.0
    assert "is 179 s now" in str(start.too_short_for_another()) and "--time=4 " in str(start.too_short_for_another())


def test_no_wording_of_a_log_counts_as_progress(tmp_path):
    start = useful_start.JobStart(tmp_path, None, 120.0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("[0:07] trial 0 epoch 1/2: top-1 50.0 %, train loss 1.000, lr 0.1\n")
    assert not start.look().useful


@pytest.mark.parametrize("ending", ["an epoch", "a failure", "put back"])
def test_a_study_in_a_database_is_counted_in_the_file_that_its_driver_writes(ending, tmp_path):
    """Of a resumed study only what this start has added is progress."""
    store = StudyStore.create(tmp_path / "study", "s", {"trials": 9}, f"sqlite:///{tmp_path}/study.db")
    first = make_bridge(store)
    first.suggest("a")
    first.observe("a", {"records": [{**record(1, 0.5), "train_s": 30.0, "val_s": 2.0}]})
    first.put_back("a")
    store.refresh(force=True)
    start = useful_start.JobStart(store.folder, None, 120.0)
    assert not start.look().useful

    again = make_bridge(store)
    again.suggest("b")
    if ending == "an epoch":
        again.observe("b", {"records": [{**record(2, 0.6), "train_s": 40.0, "val_s": 2.5}]})
    elif ending == "a failure":
        again.observe("b", {"records": [], "failure": "CheckpointError: damaged", "failure_kind": "checkpoint"})
    else:
        again.put_back("b")
    store.refresh(force=True)
    assert start.look().useful is (ending != "put back")
    store.close()


def test_a_checkpoint_within_an_epoch_is_progress_and_an_old_one_is_not(tmp_path):
    checkpoint(tmp_path, 0, step=3)
    start = useful_start.JobStart(tmp_path, None, 120.0)
    assert not start.look().useful
    checkpoint(tmp_path, 0, step=4)
    assert start.look() == useful_start.StartResult(useful=True, epochs=False)
    again = useful_start.JobStart(tmp_path, None, 120.0)
    assert not again.look().useful
    checkpoint(tmp_path, 1, step=1)
    (tmp_path / "optuna.journal").write_text(EPOCH % 1.0)
    assert again.look() == useful_start.StartResult(useful=True, epochs=True)


def test_a_trial_that_failed_is_progress_too_it_is_not_run_again(tmp_path):
    (tmp_path / "study.json").write_text('{"name": "s", "trials": 9}')
    begun = '{"op_code": 0, "study_name": "s", "directions": [2]}\n{"op_code": 4, "study_id": 0}\n'
    (tmp_path / "optuna.journal").write_text(begun)
    start = useful_start.JobStart(tmp_path, None, 120.0)
    (tmp_path / "optuna.journal").write_text(begun + '{"op_code": 6, "trial_id": 0, "state": 3, "values": null}\n')
    assert start.look().useful


def test_a_command_of_the_users_own_is_useful_if_it_runs_for_long(now):
    start = useful_start.JobStart(None, 99_999.0, 120.0)
    start.driver_begins()
    now[0] += 20.0
    assert start.look() == useful_start.StartResult(useful=False)
    now[0] += 3600.0
    assert start.look() == useful_start.StartResult(useful=True), "and nobody can say that its walltime is too short"


def test_a_walltime_without_a_first_checkpoint_is_said_with_what_was_measured_and_what_to_write(now, tmp_path):
    start = useful_start.JobStart(tmp_path, now[0] + 300.0, 120.0)
    now[0] += 40.0
    start.driver_begins()
    now[0] += 80.0  # Slurm's signal comes a minute before the margin
    start.driver_is_to_end()
    assert start.look().too_short == (
        "no trial came to a first checkpoint in the 80 s that the search had of 300 s: another start would "
        "fail too. Write sbatch --time=10 or more"
    )


@pytest.mark.parametrize("what", ["by hand", "no limit", "before the driver"])
def test_a_walltime_is_not_blamed_for_what_cut_a_start_short(what, now, tmp_path):
    start = useful_start.JobStart(tmp_path, None if what == "no limit" else now[0] + 3600.0, 120.0)
    if what != "before the driver":
        start.driver_begins()
    now[0] += 60.0 if what == "by hand" else 3480.0
    start.driver_is_to_end()
    assert start.look() == useful_start.StartResult(useful=False, epochs=False)


def test_a_study_that_cannot_be_read_says_nothing(tmp_path, monkeypatch):
    (tmp_path / "optuna.journal").mkdir()  # reading it raises OSError, also for root
    assert useful_start.saved_work(tmp_path) is None
    assert os.listdir(tmp_path) == ["optuna.journal"]
