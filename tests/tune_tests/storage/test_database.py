"""Databases whose connection breaks and disks that fill up: nothing is lost or done twice."""

import random
import subprocess
from pathlib import Path

import optuna
import pytest
import sqlalchemy.orm
import torch
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from bigbatch.base.mounts import file_system_type, is_shared
from bigbatch.train_loop.host.disk_space import DiskFull
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.tune.storage import database, storage_url
from bigbatch.tune.storage.journal_file import Disk, LineLog, open_journal
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import EPOCHS, make_bridge, number_of, record
from helpers.small_disk import fill


class Wire:
    """A connection that breaks in some commits: before the server has it, or after, so that its answer is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, share: float) -> None:
        self._random, self._share, self._commit = random.Random(seed), share, sqlalchemy.orm.Session.commit
        self.broken, self.sound = 0, False
        monkeypatch.setattr(sqlalchemy.orm.Session, "commit", lambda session: self.commit(session))

    def commit(self, session: sqlalchemy.orm.Session) -> None:
        fate = 1.0 if self.sound else self._random.random()
        if fate >= self._share / 2:
            self._commit(session)
        if fate < self._share:
            self.broken += 1
            raise OperationalError("commit", {}, ConnectionError("server closed the connection unexpectedly"))


def search(folder: Path) -> list[tuple]:
    """Three trials: one runs to its end, one fails, one is interrupted and taken up again; then what is stored."""
    store = StudyStore.create(folder, "s", {}, f"sqlite:///{folder.parent / folder.name}.db")
    bridge = make_bridge(store, trials=5, concurrency=2)
    store.study.enqueue_trial({"optimizer": "lamb"})
    bridge.suggest("a")
    bridge.suggest("b")
    for epoch in range(1, EPOCHS + 1):
        bridge.observe("a", {"records": [record(epoch, 0.1 * epoch)]})
    bridge.observe("b", {"records": [record(1, 0.5)], "failure": "bad", "failure_kind": "images"})
    bridge.suggest("c")
    bridge.observe("c", {"records": [record(1, 0.3)]})
    bridge.release()
    bridge.suggest("d")
    found = [
        (t.number, t.state, t.params, t.intermediate_values, t.values, sorted(t.user_attrs)) for t in store.study.trials
    ]
    store.close()
    return found


def test_a_search_over_a_breaking_connection_stores_what_one_over_a_sound_one_does(tmp_path, monkeypatch):
    expected = search(tmp_path / "sound")
    assert [row[1] for row in expected] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING]
    monkeypatch.setattr(database.time, "sleep", lambda s: None)
    monkeypatch.setattr("optuna.storages._rdb.storage.time.sleep", lambda s: None)
    create = optuna.create_study

    def create_then_break(**options):
        study = create(**options)
        wires.append(Wire(monkeypatch, 0, 0.3))
        monkeypatch.setattr(database.PatientStorage, "_create_new_trial", insert)
        return study

    plain = database.PatientStorage._create_new_trial

    def insert(storage, *args):
        """A trial whose insertion is repeated may be there twice, see the next test."""
        wires[0].sound = True
        made = plain(storage, *args)
        wires[0].sound = False
        return made

    wires: list[Wire] = []
    monkeypatch.setattr(optuna, "create_study", create_then_break)
    assert search(tmp_path / "broken") == expected
    assert wires[0].broken > 10


def test_a_trial_that_was_inserted_twice_is_trained_as_another_one(tmp_path):
    store = StudyStore.create(tmp_path / "s", "s", {}, f"sqlite:///{tmp_path}/a.db")
    store.study.ask()  # its number was lost with the answer
    store.recover()
    bridge = make_bridge(store, trials=1)
    assert number_of(bridge.suggest("a")) == 0
    store.close()


def test_what_is_no_lost_connection_is_not_repeated(tmp_path):
    storage = database.PatientStorage(f"sqlite:///{tmp_path}/a.db")
    study = optuna.create_study(storage=storage)
    trial_id = storage.create_new_trial(study._study_id)
    storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        storage.set_trial_state_values(trial_id, TrialState.FAIL)
    with pytest.raises(KeyError):
        storage.get_study_id_from_name("another")
    other = storage.create_new_trial(study._study_id)
    assert not storage.set_trial_state_values(other, TrialState.RUNNING), "it runs already"
    storage.set_trial_param(other, "x", 0.5, FloatDistribution(0, 1))
    assert storage.get_trial(other).params == {"x": 0.5}


MOUNTS = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
31 22 0:27 / /home rw,nosuid shared:3 master:4 - nfs4 server:/export/home rw,vers=4.2
32 22 0:40 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw,flock
33 32 0:41 / /scratch/my\040dir rw - tmpfs tmpfs rw
34 22 0:50 / /p rw - gpfs project rw
35 22 0:51 / /beeond rw - beegfs beegfs_ondemand rw
36 22 0:52 / /ceph rw - ceph mon:6789:/ rw
37 22 0:53 / /local rw - nfs4 server:/x rw
38 22 259:3 / /local rw - xfs /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/tmp/x", "ext4", False),
        ("/home/me/runs/s.db", "nfs4", True),
        ("/homework/s.db", "ext4", False),
        ("/scratch/a", "lustre", True),
        ("/scratch/my dir/a", "tmpfs", False),
        ("/p/a", "gpfs", True),
        ("/beeond/a", "beegfs", True),
        ("/ceph", "ceph", True),
        ("/local/a", "xfs", False),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_innermost_and_latest_mount(tmp_path, path, kind, shared):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert (file_system_type(Path(path), table), is_shared(Path(path), table)) == (kind, shared)


def test_the_type_is_what_the_system_itself_says():
    assert file_system_type(Path("/proc/self")) == "proc" and file_system_type(Path("/proc/x"), Path("/none")) == ""


def test_sqlite_on_a_file_system_of_several_hosts_is_warned_of_in_one_line(monkeypatch):
    monkeypatch.setattr(storage_url, "is_shared", lambda path: str(path).startswith("/home"))
    monkeypatch.setattr(storage_url, "file_system_type", lambda path: "nfs4")
    for url in ("sqlite:////home/me/s.db", "sqlite+pysqlite:////home/me/s.db?timeout=5"):
        text = storage_url.shared_file_warning(url)
        assert text is not None and "nfs4" in text and "--storage" in text and "\n" not in text
    for url in (None, "sqlite:////tmp/s.db", "sqlite://", "sqlite:///:memory:", "postgresql://u@h/d"):
        assert storage_url.shared_file_warning(url) is None


def study_on(folder: Path, disk: Disk) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=open_journal(folder / "j", disk), direction="maximize")


def test_a_line_that_does_not_fit_is_cut_off_again_and_the_journal_stays_whole(small_disk):
    disk = Disk(small_disk)
    study = study_on(small_disk, disk)
    trial = study.ask()
    whole = (small_disk / "j").read_bytes()
    hog = fill(small_disk)
    with pytest.raises(DiskFull, match=str(small_disk)):
        trial.set_user_attr("large", "x" * 100_000)  # more than what is left of the last block
    assert (small_disk / "j").read_bytes() == whole
    assert disk.full is not None and "is full" in disk.full
    hog.unlink()
    again = optuna.load_study(study_name="s", storage=open_journal(small_disk / "j", Disk(small_disk)))
    again.tell(trial.number, 0.5)
    assert again.trials[0].value == 0.5 and not again.trials[0].user_attrs


def test_a_folder_that_turns_read_only_is_named_and_nothing_is_lost(small_disk):
    disk = Disk(small_disk)
    study = study_on(small_disk, disk)
    study.tell(study.ask(), 0.5)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DiskFull, match=f"{small_disk}, in the file system .* can no longer be written"):
        study.ask()
    (kept,) = optuna.load_study(study_name="s", storage=open_journal(small_disk / "j", disk)).trials
    assert kept.value == 0.5
    with pytest.raises(OSError, match="Read-only") as refused:
        (small_disk / "table").write_text("")
    other = Disk(small_disk)
    assert other.end_because(refused.value) and other.full == disk.full


def test_a_checkpoint_without_room_leaves_the_ones_before(small_disk):
    folder = CheckpointFolder(small_disk / "c", every_s=0)
    tensor = torch.arange(15 * 2**20 // 4, dtype=torch.float32)  # 15 MB; three of them are 45
    keys: dict[str, dict[str, object]] = dict.fromkeys(("config", "data", "optimizer", "scaler"), {})
    for number in (1, 2):
        folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": number}})
    hog = fill(small_disk, leave_bytes=8 * 2**20)
    with pytest.raises(DiskFull, match="no room for a checkpoint"):
        folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": 3}})
    assert folder.load()["progress"] == {"epoch": 2}
    hog.unlink()
    folder.save({**keys, "model": {"w": tensor}, "progress": {"epoch": 3}})
    assert folder.load()["progress"] == {"epoch": 3}
    assert not list((small_disk / "c").glob("*.partial"))


def test_a_log_leaves_out_lines_for_which_there_is_no_room(small_disk):
    log = LineLog(small_disk / "log")
    print("first", file=log)
    hog = fill(small_disk)
    print("x" * 100_000, file=log)
    hog.unlink()
    print("third", file=log)
    assert (small_disk / "log").read_text().splitlines()[0] == "first"
    assert (small_disk / "log").read_text().endswith("third\n")
