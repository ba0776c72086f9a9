"""The private Ray's folder and clean-up: its own things go, nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT

from train_loop import ray_session
from train_loop.config import ConfigError


def sleeper(word: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", word])


def test_the_folder_is_private_and_its_path_short_enough_for_sockets(monkeypatch, tmp_path):
    folder = ray_session.private_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "owner").read_text() == str(os.getpid())
        assert len(str(folder)) + ray_session.SESSION_PATH_BYTES <= ray_session.SOCKET_PATH_LIMIT
    finally:
        (folder / "owner").unlink()
        folder.rmdir()


def test_a_long_temporary_folder_falls_back_to_a_short_one_or_is_refused(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = ray_session.private_folder()
    assert not str(folder).startswith(str(long))
    (folder / "owner").unlink()
    folder.rmdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="TMPDIR"):
        ray_session.private_folder()


def test_only_processes_that_name_the_folder_are_ended(tmp_path):
    ours, others = tmp_path / "bb-ray-a", tmp_path / "bb-ray-ab"
    mine, neighbour = sleeper(f"{ours}/session"), sleeper(f"{others}/session")
    try:
        ray_session.end_processes_of(ours)
        assert mine.poll() is not None and neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_folders_of_living_searches_stay_and_those_of_dead_ones_go(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    for name, owner in (
        ("live", str(os.getpid())),
        ("dead", dead.stdout.strip()),
        ("odd", "no number"),
        ("bare", None),
    ):
        folder = tmp_path / f"{ray_session.PREFIX}{name}"
        folder.mkdir()
        if owner is not None:
            (folder / "owner").write_text(owner)
    (tmp_path / "somebody-elses").mkdir()
    ray_session.remove_stale_folders()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bb-ray-bare", "bb-ray-live", "bb-ray-odd", "somebody-elses"]


def test_workers_find_this_repository_first_and_never_the_folder_of_a_script(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", str(ROOT)]))
    assert ray_session.python_path().split(os.pathsep) == [str(ROOT), "/elsewhere"]
    assert str(Path(ROOT, "tune")) not in ray_session.python_path().split(os.pathsep)
