"""Folders of one process's own on a node: made, removed, and swept after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bigbatch.base import private_folder, processes
from helpers.paths import ROOT
from helpers.small_disk import fill


def test_a_nodes_folder_is_private_short_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # too long
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    with private_folder.temporary_folder("1234567") as folder:
        assert folder.parent == Path("/tmp") and folder.stat().st_mode & 0o777 == 0o700
        assert len(f"{folder}/r/session_2026-11-21_10-00-00_000000_1234567/sockets/plasma_store") <= 107
        assert folder not in private_folder.remove_stale()
        (folder / "r").mkdir()
        (folder / "r" / "file").touch()
    assert not folder.exists()


def test_a_folder_without_room_is_not_taken_and_said(small_disk, monkeypatch):
    fill(small_disk, leave_bytes=1 << 20)
    folder, owner = private_folder.make_private_folder("bbn-7-", [str(small_disk), "/tmp"])
    with owner:
        assert folder.parent == Path("/tmp")
        private_folder.remove_folder(folder)
    with pytest.raises(
        OSError, match=rf"with 32 MiB and 150 inodes free; got {small_disk} \([01] MiB free\), /x \(not wri"
    ) as no:
        private_folder.make_private_folder("bbn-7-", [str(small_disk), "/x"])
    assert "\n" not in str(no.value) and list(small_disk.iterdir()) == [small_disk / "hog"]


def test_what_a_killed_job_left_is_removed_with_its_processes(monkeypatch):
    # Not in /tmp itself, which a search that starts beside this test sweeps, too.
    base = tempfile.TemporaryDirectory(dir="/tmp", prefix="t")
    monkeypatch.setenv("BIGBATCH_NODE_TMP", base.name)
    hold = "import os, signal; from bigbatch.base.private_folder import temporary_folder\n"
    hold += "with temporary_folder('77') as f: print(f, flush=True); signal.pause()"
    node_process = subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT / "src", stdout=subprocess.PIPE, text=True)
    folder = Path(node_process.stdout.readline().strip())
    orphan = subprocess.Popen(["sleep", "300"], executable="/bin/sleep", start_new_session=True)
    daemon = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", f"ray start {folder}/r/socket"])
    assert processes.wait_until(lambda: b"socket" in Path(f"/proc/{daemon.pid}/cmdline").read_bytes(), 60)
    node_process.kill()
    node_process.wait()
    assert folder.exists() and folder.parent == Path(base.name)
    assert folder in private_folder.remove_stale() and not folder.exists()
    assert daemon.wait(30) in (-signal.SIGTERM, -signal.SIGKILL) and orphan.poll() is None
    orphan.kill()
    orphan.wait()
    base.cleanup()


def test_a_removal_that_is_cut_short_is_taken_up_by_the_next_sweep(tmp_path, monkeypatch):
    folder, owner = private_folder.make_private_folder("bbn-7-", ["/tmp"])
    left = []
    rmtree = private_folder.shutil.rmtree

    def look_first(path, **options):
        if path == folder:
            left.append(os.listdir(folder))
        rmtree(path, **options)

    for name in ("of-the-driver", "r"):
        (folder / name).mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to(tmp_path)
    monkeypatch.setattr(private_folder.shutil, "rmtree", look_first)
    private_folder.remove_folder(folder)
    owner.close()
    assert left == [["owner"]] and not folder.exists() and tmp_path.exists()


def test_a_users_folder_with_a_name_like_ours_stays(tmp_path):
    for name in ("bbn-7-notes", "bbn-2026-cafe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").touch()
    assert private_folder.remove_stale(candidates=[str(tmp_path)]) == []
    assert {path.name for path in tmp_path.iterdir()} == {"bbn-7-notes", "bbn-2026-cafe"}
