"""Searches where the surroundings are not those of a developer's machine: each goes through, or says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TUNE, clean_environment

from cluster import node_folder

DEAD_PROXY = "http://127.0.0.1:9"
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), DEAD_PROXY)
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
ELSEWHERE = {
    "RAY_ADDRESS": "192.0.2.1:6379", "RAY_NAMESPACE": "theirs", "RAY_TMPDIR": "/nonexistent",
    "RAY_AUTH_TOKEN": "theirs", "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"namespace": "theirs"}',
}  # fmt: skip
NO_HOME = {"HOME": "/dev/null/home"}  # cannot be made, not by root either
UNWRITABLE = "/proc"


@pytest.fixture(scope="module")
def packed(tiny_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from train_loop.data.pack import main

    target = tmp_path_factory.mktemp("packed") / "set"
    assert main([str(tiny_images), str(target)]) == 0
    return target


def long_tmpdir(tmp_path: Path) -> dict[str, str]:
    """As prologs of jobs make them: too long for a Unix socket of Python's or Ray's below it."""
    folder = tmp_path / ("job-" + "x" * 83)
    folder.mkdir()
    return {"TMPDIR": str(folder)}


SURROUNDINGS = {
    # Those that share a run touch different things, so none hides another's fault.
    "long TMPDIR, no home, proxies, another cluster": lambda tmp_path: (
        {**long_tmpdir(tmp_path), **NO_HOME, **PROXIES, **ELSEWHERE}, tmp_path, ("--stage", "$TMPDIR")),
    "ASCII, no TMPDIR there, a folder to start in that cannot be written": lambda tmp_path: (
        {**ASCII, "TMPDIR": "/nonexistent"}, Path(UNWRITABLE), ()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("where", SURROUNDINGS)
def test_a_search_goes_through_in(where, packed, tiny_space, tmp_path):
    env, cwd, more = SURROUNDINGS[where](tmp_path)
    tiny_space.write_text(tiny_space.read_text().replace("Learning rate of", "Learning rate … of"), encoding="utf-8")
    arguments = ("--space", tiny_space, "--data", packed, "--model", "shufflenet_v2_x0_5", "--set", "image_size=16")
    done = subprocess.run(
        [sys.executable, TUNE, *map(str, arguments), *more, "--trials", "1", "--max-epochs", "1", "--study", "s",
         "--output", str(tmp_path / "runs")],
        cwd=cwd, env={**clean_environment(), **env}, capture_output=True, timeout=240,
    )  # fmt: skip
    folder = tmp_path / "runs" / "s"
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stderr == b"", done.stderr.decode(errors="replace")
    assert b"1 of 1 trials ran to their end" in done.stdout
    assert "trial 0 epoch 1/1" in (folder / "logs" / "driver.log").read_text(encoding="utf-8")
    if more:  # the user's own TMPDIR, not the short one of Ray's processes
        assert list(Path(env["TMPDIR"]).rglob("train-*.arrow"))


def test_a_search_in_a_folder_that_was_removed_is_refused_in_one_line(tiny_space, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} {TUNE} --space {tiny_space} --data digits --dry-run"
    done = subprocess.run(["sh", "-c", command], cwd=gone, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "cd" in done.stderr


def test_no_temporary_folder_that_can_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    import tempfile

    from train_loop import ray_session
    from train_loop.config import ConfigError

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(node_folder.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="TMPDIR"):
        ray_session.remove_stale_folders()
        ray_session.private_folder()


def test_the_users_own_tmpdir_is_known_however_deep_a_search_runs(tmp_path):
    job = node_folder.temporary_in(Path("/tmp/bbn-17-0a1b"), {"TMPDIR": "/local/mine"})
    search = node_folder.temporary_in(Path("/tmp/bb-ray-0a1b"), job)
    assert search == {"TMPDIR": "/tmp/bb-ray-0a1b", node_folder.USER_TMPDIR: "/local/mine"}
    stale = {"TMPDIR": "/local/new", node_folder.USER_TMPDIR: "/local/of-an-earlier-job"}  # by sbatch --export=ALL
    assert node_folder.temporary_in(Path("/tmp/bb-ray-0a1b"), stale)[node_folder.USER_TMPDIR] == "/local/new"
