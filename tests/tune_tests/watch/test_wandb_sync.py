"""``bigbatch wandb-sync`` with W&B's own programs and a stand-in of its server: what arrives is what was trained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch import wandb_uploads
from bigbatch.tune.watch.wandb_files import OfflineRuns, read_offline_run
from bigbatch.tune.watch.wandb_sync_command import wandb_sync_main
from helpers.processes import clean_environment
from helpers.waiting import wait_until
from helpers.wandb_server import UploadedRun, WandbServer
from helpers.wandb_writer import LEARNING_RATE, WandbWriter, value_after

pytestmark = pytest.mark.without_ray

writes_at_once = pytest.mark.skipif(
    wandb_uploads.wandb_release() < wandb_uploads.LIVE_SINCE, reason="this W&B writes a run in blocks of 32 KiB"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    StudyStore.create(tmp_path / "s", "s", {"trials": 9}, None).close()
    return tmp_path / "s"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def curve(run: UploadedRun) -> dict[int, float]:
    return {line["epoch"]: line["val_top1"] for line in run.history}


def epochs(last: int) -> dict[int, float]:
    return {epoch: value_after(epoch) for epoch in range(1, last + 1)}


def has_epochs(server: WandbServer, name: str, last: int) -> bool:
    return name in server.runs and {line["epoch"] for line in server.runs[name].lines.values()} == set(epochs(last))


def files_say(folder: Path, lines: int) -> bool:
    """Whether the only run on disk has so many lines; a driver writes them some time after the epoch."""
    return [run.lines for run in OfflineRuns(folder / "wandb").latest()] == [lines]


@pytest.mark.parametrize("release", [(0, 22), wandb_uploads.wandb_release()])
def test_runs_arrive_whole_side_by_side_and_once(release, folder, server, capsys, monkeypatch):
    """Older releases have the parallel upload under another name, newer ones under both."""
    monkeypatch.setattr(wandb_uploads, "wandb_release", lambda: release)
    with WandbWriter(folder, SLURM_JOB_ID="4711", SLURM_RESTART_COUNT="2") as writer:
        for number, state in enumerate(("COMPLETE", "PRUNED", "FAIL")):
            writer.whole_trial(number, 2 + number, state)
        writer.close()
    server.begin_together(3)
    assert wandb_sync_main([str(folder), "--jobs", "3"]) == 0
    assert server.began_together, "no run began before the others had ended"
    assert sorted(server.runs) == ["s-0000", "s-0001", "s-0002"]
    for number, (name, run) in enumerate(sorted(server.runs.items())):
        assert curve(run) == epochs(2 + number)
        assert run.names["displayName"] == name and run.names["groupName"] == "s"
        assert run.config["optimizer"]["value"]["peak_lr"] == LEARNING_RATE
        assert run.config["slurm_job_id"]["value"] == "4711" and run.config["slurm_restart_count"]["value"] == 2
        if wandb_uploads.wandb_release() >= (0, 29):  # before, `wandb sync` says of each run that it went well
            assert run.exit_codes == [int(number == 2)]
    sent = list(server.starts)
    assert "sent s-0002: 4 epochs" in capsys.readouterr().out
    assert wandb_sync_main([str(folder)]) == 0
    assert server.starts == sent and "The server has all runs" in capsys.readouterr().out


def test_a_study_may_be_named_from_the_current_folder(folder, server, monkeypatch):
    with WandbWriter(folder) as writer:
        writer.whole_trial(0, 2)
        writer.close()
    monkeypatch.chdir(folder.parent)
    assert wandb_sync_main(["s", "--output", "."]) == 0
    assert curve(server.runs["s-0000"]) == epochs(2)


@pytest.mark.slow
@writes_at_once
def test_a_killed_run_has_its_configuration_and_goes_on_under_its_name(folder, server):
    with WandbWriter(folder, SLURM_JOB_ID="1") as writer:
        writer.tell("start", 7, 0)
        for epoch in (1, 2):
            writer.tell("epoch", 7, epoch)
        wait_until(lambda: files_say(folder, 2), "the epochs were not written")
        writer.kill()
    assert wandb_sync_main([str(folder)]) == 0
    run = server.runs["s-0007"]
    assert curve(run) == epochs(2) and run.exit_codes == [1]
    assert run.config["slurm_job_id"]["value"] == "1"
    assert run.config["optimizer"]["value"]["peak_lr"] == LEARNING_RATE
    with WandbWriter(folder, SLURM_JOB_ID="1", SLURM_RESTART_COUNT="1") as writer:  # put back into the queue
        writer.tell("start", 7, 2)
        writer.tell("epoch", 7, 3)
        writer.tell("end", 7, "COMPLETE")
        writer.close()
    assert wandb_sync_main([str(folder)]) == 0
    assert list(server.runs) == ["s-0007"]
    assert curve(run) == epochs(3) and run.exit_codes == [1, 0]
    assert run.config["slurm_restart_count"]["value"] == 1
    marks = list((folder / "wandb").glob("offline-run-*/*.synced"))
    assert len(marks) == 2, "a later `wandb sync` sends neither file again"


@pytest.mark.slow
@writes_at_once
def test_a_cut_network_loses_nothing_and_a_growing_run_stays_open(folder, server, tmp_path):
    store = StudyStore.open(folder, None)  # the search runs
    environment = {**clean_environment(), **server.environment}
    command = [sys.executable, "-m", "bigbatch", "wandb-sync", str(folder), "--follow", "--every", "0.5"]
    with WandbWriter(folder) as writer, (tmp_path / "out").open("w+") as out:
        follow = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=tmp_path)
        try:
            writer.tell("start", 0, 0)
            writer.tell("epoch", 0, 1)
            wait_until(lambda: has_epochs(server, "s-0000", 1), "nothing came")
            server.cut.set()
            refused = server.refused
            writer.tell("epoch", 0, 2)
            wait_until(lambda: server.refused > refused + 3, "nothing was sent")
            server.cut.clear()
            wait_until(lambda: has_epochs(server, "s-0000", 2), "the second epoch is lost")
            assert server.runs["s-0000"].exit_codes == [], "it still trains"
            writer.tell("epoch", 0, 3)
            writer.tell("end", 0, "COMPLETE")
            writer.whole_trial(1, 1)
            writer.close()
            store.close()
            assert follow.wait(300) == 0
        finally:
            follow.kill()
            follow.wait()
        out.seek(0)
        said = out.read()
    assert {name: curve(run) for name, run in server.runs.items()} == {"s-0000": epochs(3), "s-0001": epochs(1)}
    assert server.runs["s-0000"].exit_codes[-1] == 0, said
    assert "sent s-0000: 3 epochs\n" in said


@writes_at_once
def test_a_growing_run_waits_for_its_end_where_wandb_cannot_send_it_before(folder, server, capsys, monkeypatch):
    """Sent before, the server would show it as failed."""
    monkeypatch.setattr(wandb_uploads, "wandb_release", lambda: (0, 30))
    store = StudyStore.open(folder, None)  # the search runs
    with WandbWriter(folder) as writer:
        writer.tell("start", 0, 0)
        writer.tell("epoch", 0, 1)
        wait_until(lambda: files_say(folder, 1), "the epoch was not written")
        assert wandb_sync_main([str(folder)]) == 0
        said = capsys.readouterr().out
        assert "not yet: s-0000 still train" in said and "W&B 0.31 or newer" in said and "has all" not in said
        assert not server.runs
        writer.tell("end", 0, "COMPLETE")
        writer.close()
    assert wandb_sync_main([str(folder)]) == 0
    store.close()
    assert curve(server.runs["s-0000"]) == epochs(1) and server.runs["s-0000"].exit_codes == [0]


@pytest.mark.slow
def test_a_failed_upload_is_not_taken_for_done(folder, server, capsys, monkeypatch):
    """``wandb sync`` marks a run as synced although the server has lost its lines."""
    monkeypatch.setattr(wandb_uploads, "ARRIVE_S", 2.0)
    with WandbWriter(folder) as writer:
        writer.whole_trial(0, 2)
        writer.close()
    server.forgets_lines = True
    assert wandb_sync_main([str(folder)]) == 1
    assert "not sent: s-0000" in capsys.readouterr().err
    assert list((folder / "wandb").glob("*/*.synced")) == []
    server.forgets_lines = False
    assert wandb_sync_main([str(folder)]) == 0
    assert curve(server.runs["s-0000"]) == epochs(2)


def test_a_file_is_read_as_far_as_it_was_written(folder):
    with WandbWriter(folder) as writer:
        writer.whole_trial(0, 130)  # more than two blocks of 32 KiB
        writer.close()
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    content = path.read_bytes()
    assert len(content) > 2 * 32768
    whole = read_offline_run(path)
    assert whole is not None and (whole.run_id, whole.lines, whole.has_ended) == ("s-0000", 130, True)
    last = 0
    for size in range(0, len(content), 997):
        path.write_bytes(content[:size])
        part = read_offline_run(path)
        lines = part.lines if part else 0
        assert lines >= last and not (part and part.has_ended and size < len(content) - 32768)
        last = lines


def test_wrong_input_meets_one_line(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for options, words in (
        ([str(folder)], "has none. Search with --wandb offline"),
        ([str(folder), "--follow"], "wandb login"),
        ([str(folder), "--jobs", "0"], "--jobs must be at least 1"),
        ([str(folder), "--every", "0"], "--every must be more than 0"),
        ([str(folder / "none")], "there is none called"),
    ):
        assert wandb_sync_main(options) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
