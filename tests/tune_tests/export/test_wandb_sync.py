"""``bigbatch wandb-sync`` with W&B's own programs and a stand-in of its server, and with a stand-in of the programs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch.cluster.host.lease import Lease
from bigbatch.tune.commands.wandb_sync import wandb_sync_main
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refused_command
from helpers.waiting import wait_until
from helpers.wandb_server import UploadedRun
from helpers.wandb_writer import LEARNING_RATE, WandbWriter, value_after

pytestmark = pytest.mark.without_ray

FAKE_WANDB = '''
"""``python -m wandb``: does with each file what BEHAVIOUR says, when so many calls as TOGETHER have begun."""
import json, os, sys, threading
from pathlib import Path
calls, files = Path(os.environ["CALLS"]), [Path(word) for word in sys.argv if word.endswith(".wandb")]
with calls.open("a") as lines:
    lines.write(json.dumps(sys.argv[1:]) + "\\n")
while len(calls.read_text().splitlines()) < int(os.environ.get("TOGETHER", "0")):
    threading.Event().wait(0.01)
for file in files:
    word = json.loads(os.environ["BEHAVIOUR"]).get(file.stem, "ok")
    print(f"wandb: Syncing {file}", file=sys.stderr)
    if "error" in word:  # as W&B 0.31 says and does it when the network is cut
        print("wandb: ERROR [p/r] Fatal error while uploading data.", file=sys.stderr)
    if word in ("ok", "error"):
        file.with_suffix(".wandb.synced").touch()
    if word == "waits":
        threading.Event().wait(60)
    if word == "fails":
        sys.exit("Error: no such command")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    StudyStore.create(tmp_path / "s", "s", {"trials": 9}, None).close()
    return tmp_path / "s"


class FakeWandb:
    """W&B's command, as the tests want it to behave."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls, self._set = folder / "calls", monkeypatch.setenv
        folder.mkdir()
        (folder / "wandb.py").write_text(FAKE_WANDB)
        for name, value in {"PYTHONPATH": str(folder), "CALLS": str(self._calls), "WANDB_API_KEY": "0" * 40}.items():
            monkeypatch.setenv(name, value)
        self.behave()

    def behave(self, **words: str) -> None:
        """What becomes of the files of the runs ``s_0000`` and so on; of the others: it sends them."""
        self._set("BEHAVIOUR", json.dumps({f"run-{name.replace('_', '-')}": word for name, word in words.items()}))

    def wait_for(self, calls: int) -> None:
        self._set("TOGETHER", str(calls))

    def taken(self) -> list[str]:
        """What each call since the last look was for: ``sync s-0000``."""
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        names = [" ".join(re.findall(r"run-(s-\d+)\.wandb", " ".join(words))) for words in calls]
        return [f"{words[0]} {name}" for words, name in zip(calls, names, strict=True)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    return FakeWandb(tmp_path / "fake", monkeypatch)


def offline_run(folder: Path, number: int, content: str = "epochs", *, attempt: int = 1, ended: bool = True) -> Path:
    """A file of an offline run, as W&B and our observer leave it."""
    run = folder / "wandb" / f"offline-run-20261126_{attempt:06d}-s-{number:04d}"
    run.mkdir(parents=True)
    if ended:
        (run / "ended").touch()
    (run / f"run-s-{number:04d}.wandb").write_text(content)
    return run / f"run-s-{number:04d}.wandb"


def curve(run: UploadedRun) -> dict[int, float]:
    return {line["epoch"]: line["val_top1"] for line in run.history}


def epochs(last: int) -> dict[int, float]:
    return {epoch: value_after(epoch) for epoch in range(1, last + 1)}


def test_each_run_has_a_process_and_is_sent_once(folder, fake, capsys):
    for number in range(3):
        offline_run(folder, number)
    fake.wait_for(3)  # one after the other they would wait for ever
    assert wandb_sync_main([str(folder), "--jobs", "3"]) == 0
    assert sorted(fake.taken()) == ["sync s-0000", "sync s-0001", "sync s-0002"]
    assert set(capsys.readouterr().out.splitlines()) == {*(f"sent s-000{n}" for n in range(3)), "W&B has all runs."}
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == [] and capsys.readouterr().out == "W&B has all runs.\n"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("error", "[p/r] Fatal error while uploading data."),
        ("fails", "Error: no such command, exit code 1"),
        ("silent", "exit code 0"),
    ],
)
def test_a_failure_is_one_line_and_the_run_is_sent_later(folder, fake, capsys, behaviour, words):
    files = [offline_run(folder, number) for number in range(2)]
    fake.behave(s_0000=behaviour)
    assert wandb_sync_main([str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "sent s-0001\n" and printed.err.count("\n") == 1
    assert printed.err.startswith("not sent: s-0000 (") and words in printed.err and "call it again" in printed.err
    assert [file.with_suffix(".wandb.synced").exists() for file in files] == [False, True]
    fake.taken()
    fake.behave()
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == ["sync s-0000"]


def test_the_largest_file_stands_for_a_run_and_a_later_one_that_grows_for_it_again(folder, fake):
    earlier = offline_run(folder, 0, "three epochs", attempt=1)
    later = offline_run(folder, 0, "one", attempt=2)  # it was killed when it had just begun
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == ["sync s-0000"] and earlier.with_suffix(".wandb.synced").exists()
    assert later.with_suffix(".wandb.synced").exists(), "a later `wandb sync` does not put it over the whole run"
    time = later.with_suffix(".wandb.synced").stat().st_mtime_ns
    later.write_text("three epochs and more")
    os.utime(later, ns=(time, time))  # within one tick of the file system's clock
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == ["sync s-0000"]
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == []


def test_while_a_search_runs_its_open_runs_wait_for_their_end(folder, fake, tmp_path, capsys):
    offline_run(folder, 0)
    growing = offline_run(folder, 1, ended=False)
    store = StudyStore.open(folder, None)  # the search runs
    assert wandb_sync_main([str(folder)]) == 0
    assert fake.taken() == ["sync s-0000"]
    assert "W&B has all other runs; --follow sends those that run too" in capsys.readouterr().out
    command = [sys.executable, "-m", "bigbatch", "wandb-sync", str(folder), "--follow", "--every", "0.5"]
    out = tmp_path / "out"
    with out.open("w") as file:
        follow = subprocess.Popen(command, env=os.environ, stdout=file, stderr=file, cwd=tmp_path)
        try:
            (growing.parent / "ended").touch()
            wait_until(lambda: "sent s-0001" in out.read_text(), "the run that has ended was not sent")
            store.close()
            assert follow.wait(300) == 0
        finally:
            follow.kill()
            follow.wait()
    assert fake.taken().count("sync s-0000") == 0


def test_ctrl_c_begins_no_other_upload(folder, fake, tmp_path):
    for number in range(3):
        offline_run(folder, number)
    fake.behave(s_0000="waits")
    command = [sys.executable, "-m", "bigbatch", "wandb-sync", str(folder), "--jobs", "1"]
    process = subprocess.Popen(command, env=os.environ, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: (tmp_path / "fake" / "calls").exists(), "no upload began")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and b"sent by the next call" in said
    assert fake.taken() == ["sync s-0000"]


def test_a_full_run_is_sent_from_its_own_folder(tmp_path, fake, capsys):
    offline_run(tmp_path / "train", 0, ended=False)
    lease = Lease(tmp_path / "train")
    lease.take()
    assert wandb_sync_main([str(tmp_path / "train")]) == 0
    assert fake.taken() == [] and "--follow sends those that run too" in capsys.readouterr().out
    lease.release()
    assert wandb_sync_main([str(tmp_path / "train")]) == 0
    assert fake.taken() == ["sync s-0000"], "it was killed"


def test_wandb_itself_sends_whole_runs_and_says_when_the_server_is_gone(folder, server, capsys, monkeypatch):
    with WandbWriter(folder, SLURM_JOB_ID="4711", SLURM_RESTART_COUNT="2") as writer:
        for number, state in enumerate(("COMPLETE", "PRUNED", "FAIL")):
            writer.whole_trial(number, 2 + number, state)
        writer.close()
    monkeypatch.setenv("WANDB_X_GRAPHQL_RETRY_MAX", "1")
    server.cut.set()
    monkeypatch.chdir(folder.parent)
    assert wandb_sync_main(["s", "--output", "."]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not sent: s-0000, s-0001, s-0002 (") and "call it again" in line
    server.cut.clear()
    server.begin_together(3)
    assert wandb_sync_main(["s", "--output", "."]) == 0
    assert server.began_together, "no run began before the others had ended"
    assert sorted(server.runs) == ["s-0000", "s-0001", "s-0002"]
    for number, (name, run) in enumerate(sorted(server.runs.items())):
        assert curve(run) == epochs(2 + number)
        assert run.names["displayName"] == name and run.names["groupName"] == "s"
        assert run.config["optimizer"]["value"]["peak_lr"] == LEARNING_RATE
        assert run.config["slurm_job_id"]["value"] == "4711" and run.config["slurm_restart_count"]["value"] == 2
        assert run.exit_codes[-1:] in ([int(number == 2)], [0])  # W&B before 0.29 says of each that it went well


def test_a_killed_run_goes_on_under_its_name(folder, server):
    """Put back into the queue, it runs again: its next file has all epochs, and takes the place of the first."""
    with WandbWriter(folder, SLURM_JOB_ID="1") as writer:
        writer.tell("start", 7, 0)
        for epoch in (1, 2):
            writer.tell("epoch", 7, epoch)
        writer.kill()
    with WandbWriter(folder, SLURM_JOB_ID="1", SLURM_RESTART_COUNT="1") as writer:
        writer.tell("start", 7, 2)
        for epoch in (3, 4):
            writer.tell("epoch", 7, epoch)
        writer.tell("end", 7, "COMPLETE")
        writer.close()
    assert wandb_sync_main([str(folder)]) == 0
    run = server.runs["s-0007"]
    assert list(server.runs) == ["s-0007"] and curve(run) == epochs(4) and run.exit_codes[-1] == 0
    assert run.config["slurm_restart_count"]["value"] == 1
    marks = list((folder / "wandb").glob("offline-run-*/*.synced"))
    assert len(marks) == 2, "a later `wandb sync` sends neither file again"


def test_wrong_input_meets_one_line(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for options, words in (
        ([str(folder)], "has none. Search with --wandb offline"),
        ([str(folder), "--jobs", "0"], "must be more than 0"),
        ([str(folder), "--every", "0"], "must be more than 0"),
        ([str(folder / "none")], "there is none called"),
    ):
        assert words in refused_command(capsys, wandb_sync_main, options)
