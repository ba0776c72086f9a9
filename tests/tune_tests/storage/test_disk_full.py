"""A disk that fills up while a search runs: one line, nothing lost, and it goes on once there is room."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import optuna
import pytest
import torch

from bigbatch.base import private_folder
from bigbatch.train_loop.errors import RayStartError
from bigbatch.train_loop.host.disk_space import DiskFull, describe_full_disk, full_errno, mount_of
from bigbatch.train_loop.launch.ray_session import LocalRay
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.tune.storage import patient_journal
from bigbatch.tune.storage.patient_journal import Disk, LineLog, PatientJournal
from helpers.small_disk import fill


def study_on(folder: Path, disk: Disk) -> optuna.Study:
    storage = optuna.storages.JournalStorage(PatientJournal(folder / "j", disk))
    return optuna.create_study(study_name="s", storage=storage, direction="maximize")


def test_a_line_that_does_not_fit_is_cut_off_again_and_written_when_there_is_room(small_disk, monkeypatch, capfd):
    monkeypatch.setattr(patient_journal, "POLL_S", 0.01)
    disk = Disk(small_disk, {patient_journal.JOB_VARIABLE: "/some/job"})
    study = study_on(small_disk, disk)
    hog = fill(small_disk)
    looks = []
    disk.stopped = lambda: bool(looks.append(1)) or (len(looks) == 3 and hog.unlink())  # room after three looks
    trial = study.ask()
    trial.set_user_attr("large", "x" * 100_000)  # more than what is left of the last block
    study.tell(trial, 0.5)
    again = optuna.load_study(
        study_name="s",
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(small_disk / "j"))),
    )
    assert again.trials[0].value == 0.5 and len(again.trials[0].user_attrs["large"]) == 100_000
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and str(small_disk) in said[0] and "30 min" in said[0] and "room again" in said[1]


def test_without_a_job_nobody_waits_and_the_journal_stays_whole(small_disk):
    disk = Disk(small_disk, {})
    study = study_on(small_disk, disk)
    trial = study.ask()
    whole = (small_disk / "j").read_bytes()
    fill(small_disk)
    with pytest.raises(DiskFull, match=str(small_disk)):
        trial.set_user_attr("large", "x" * 100_000)
    assert (small_disk / "j").read_bytes() == whole
    assert disk.full is not None


def test_a_search_that_is_told_to_stop_does_not_wait_for_room(small_disk):
    disk = Disk(small_disk, {patient_journal.JOB_VARIABLE: "/some/job"})
    disk.stopped = lambda: True
    with pytest.raises(DiskFull):
        disk.await_room(errno.EDQUOT)
    assert disk.full is not None and "quota" in disk.full


def test_a_checkpoint_without_room_leaves_the_one_before_and_takes_the_room_of_the_oldest(small_disk):
    folder = CheckpointFolder(small_disk / "c", every_s=0)
    tensor = torch.arange(15 * 2**20 // 4, dtype=torch.float32)  # 15 MB; three of them are 45
    keys: dict[str, dict[str, object]] = dict.fromkeys(("config", "data", "optimizer", "scaler"), {})
    for number in (1, 2):
        folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": number}})
    hog = fill(small_disk, leave_bytes=8 * 2**20)  # too little for a third beside two, enough in place of one
    folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": 3}})
    assert folder.load()["progress"] == {"epoch": 3}
    hog.unlink()
    fill(small_disk)
    (small_disk / "c" / "previous.pt").unlink(missing_ok=True)
    fill(small_disk)
    with pytest.raises(DiskFull, match="no room for a checkpoint"):
        folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": 4}})
    assert folder.load()["progress"] == {"epoch": 3}
    assert not list((small_disk / "c").glob("*.partial"))


def test_what_is_full_is_named(small_disk):
    assert mount_of(small_disk / "not" / "there") == small_disk
    fill(small_disk)
    text = describe_full_disk(errno.ENOSPC, small_disk)
    assert str(small_disk) in text and "is full (0.0 of 0.1 GB left)" in text
    assert "quota" in describe_full_disk(errno.EDQUOT, small_disk) and str(small_disk) in describe_full_disk(
        errno.EDQUOT, small_disk
    )


def test_a_full_disk_is_known_behind_other_errors():
    behind = RuntimeError("something else")
    behind.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    assert full_errno(behind) == errno.EDQUOT
    assert full_errno(RuntimeError("write failed: No space left on device")) == errno.ENOSPC
    assert full_errno(OSError(errno.EACCES, "Permission denied")) is None
    assert full_errno(None) is None


def test_a_log_leaves_out_lines_for_which_there_is_no_room(small_disk):
    log = LineLog(small_disk / "log")
    print("first", file=log)
    hog = fill(small_disk)
    print("x" * 100_000, file=log)
    hog.unlink()
    print("third", file=log)
    assert (small_disk / "log").read_text().splitlines()[0] == "first"
    assert (small_disk / "log").read_text().endswith("third\n")


@pytest.mark.slow
def test_a_full_temporary_folder_is_named_when_ray_cannot_start(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    monkeypatch.setattr(private_folder, "LEAST_FREE_BYTES", 0)  # as if it became full after that was looked at
    fill(small_disk)
    with pytest.raises(RayStartError, match=f"{small_disk}.* is full") as caught, LocalRay(1, 0, tmp_path / "ray.log"):
        pass
    assert "\n" not in str(caught.value)
    assert [path.name for path in small_disk.iterdir()] == ["hog"]
