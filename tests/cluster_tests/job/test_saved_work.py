"""What a start of a job has added to its study, with studies as they are left on the disk."""

import pytest

from bigbatch.cluster.job.restart import saved_work
from bigbatch.cluster.record.study_progress import read_study_progress
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.tune.runs.retry import retry_failed
from bigbatch.tune.runs.run import count_ended
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import make_bridge, record

EPOCH = '{"op_code": 8, "trial_id": 0, "user_attr": {"epoch/00001": {"train_s": 1.0, "val_s": 10.0}}}\n'
BEGUN = '{"op_code": 0, "study_name": "s", "directions": [2]}\n{"op_code": 4, "study_id": 0}\n'
BROKEN = ("CheckpointError: damaged", FailureKind.CHECKPOINT)
FAILED = '{"op_code": 6, "trial_id": 0, "state": 3, "values": null}\n'


def test_epochs_ends_of_trials_and_checkpoints_within_an_epoch_are_saved_work(tmp_path):
    (tmp_path / "study.json").write_text('{"name": "s", "trials": 9}')
    assert saved_work(tmp_path) == (0, 0, 0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("[0:07] trial 0 epoch 1/2: top-1 50.0 %, train loss 1.000, lr 0.1\n")
    assert saved_work(tmp_path) == (0, 0, 0), "no wording of a log counts"
    (tmp_path / "optuna.journal").write_text(BEGUN + EPOCH + FAILED)
    assert saved_work(tmp_path) == (1, 1, 0)
    seen = []
    for step in (3, 4):
        CheckpointFolder(tmp_path / "checkpoints" / "trial-0000", 20.0).save({"progress": {"step": step}})
        seen.append(saved_work(tmp_path).saved)
    assert 0 < seen[0] < seen[1]
    before = saved_work(tmp_path)
    with (tmp_path / "optuna.journal").open("a") as journal:
        journal.write('{"op_code": 4, "study_id": 0, "user_attrs": {"retries": 0}}\n')
        journal.write(FAILED.replace('"trial_id": 0', '"trial_id": 1'))
    assert saved_work(tmp_path).ended == before.ended + 1, "--retry-failed, and it failed again"


@pytest.mark.parametrize("ending", ["an epoch", "a failure", "a retry's failure", "put back"])
def test_a_study_in_a_database_is_counted_in_the_file_that_its_driver_writes(ending, tmp_path):
    """A resumed study of which nothing was noted before: only what this start has added is progress."""
    store = StudyStore.create(tmp_path / "study", "s", {"trials": 9}, f"sqlite:///{tmp_path}/study.db")
    first = make_bridge(store)
    first.suggest("a")
    first.observe("a", {"records": [{**record(1, 0.5), "train_s": 30.0, "val_s": 2.0}]})
    first.put_back("a")
    if ending == "a retry's failure":
        first.suggest("a")
        first.fail("a", *BROKEN)
    store.refresh(force=True)
    before = saved_work(store.folder)
    retry_failed(store)
    again = make_bridge(store)
    again.suggest("b")
    if ending == "an epoch":
        again.observe("b", {"records": [{**record(2, 0.6), "train_s": 40.0, "val_s": 2.5}]})
    elif ending.endswith("failure"):
        again.fail("b", *BROKEN)
    else:
        again.put_back("b")
    store.refresh(force=True)
    assert (saved_work(store.folder)[:2] > before[:2]) is (ending != "put back")
    shown = read_study_progress(store.folder)
    assert shown is not None and shown.finished == count_ended(store.study.trials) < 2
    store.close()


def test_a_study_that_cannot_be_read_says_nothing(tmp_path):
    (tmp_path / "optuna.journal").mkdir()  # reading it raises OSError, also for root
    assert saved_work(tmp_path) is None and saved_work(None) is None
