"""Searches where the surroundings are not those of a developer's machine: each goes through, or says why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.base import private_folder
from helpers.paths import TUNE
from helpers.processes import clean_environment
from helpers.searches import Search, load
from helpers.small_disk import fill

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
    from bigbatch.train_loop.data.packing.command import main

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
        {**long_tmpdir(tmp_path), **NO_HOME, **PROXIES, **ELSEWHERE},
        tmp_path, ("--stage", "$TMPDIR")),
    "ASCII, no TMPDIR there, a folder to start in that cannot be written": lambda tmp_path: (
        {**ASCII, "TMPDIR": "/nonexistent"}, Path(UNWRITABLE), ()),
}  # fmt: skip


FIRST, SECOND = SURROUNDINGS
A_DISK_THAT_FILLS_UP = "a disk that fills up"


@pytest.mark.slow
@pytest.mark.parametrize("where", [FIRST, pytest.param(SECOND, marks=pytest.mark.exhaustive), A_DISK_THAT_FILLS_UP])
def test_a_search_loses_nothing_in(where, request, tiny_images, packed, tiny_space, tmp_path):
    if where == A_DISK_THAT_FILLS_UP:
        ends_with_one_line_and_goes_on(request.getfixturevalue("small_disk"), tiny_images, tiny_space, tmp_path)
    else:
        goes_through(*SURROUNDINGS[where](tmp_path), packed, tiny_space, tmp_path)


def goes_through(env: dict[str, str], cwd: Path, more: tuple[str, ...], packed: Path, tiny_space: Path, tmp_path: Path):
    tiny_space.write_text(tiny_space.read_text().replace("Learning rate of", "Learning rate … of"), encoding="utf-8")
    arguments = ("--space", tiny_space, "--data", packed, "--model", "shufflenet_v2_x0_5", "--set", "image_size=16")
    done = subprocess.run(
        [sys.executable, TUNE, *map(str, arguments), *more, "--trials", "2", "--max-epochs", "1", "--study", "s",
         "--output", str(tmp_path / "runs")],
        cwd=cwd, env={**clean_environment(), **env}, capture_output=True, timeout=240,
    )  # fmt: skip
    folder = tmp_path / "runs" / "s"
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stderr == b"", done.stderr.decode(errors="replace")
    assert b"2 of 2 trials ran to their end" in done.stdout
    assert "trial 0 epoch 1/1" in (folder / "logs" / "driver.log").read_text(encoding="utf-8")
    if more:  # the user's own TMPDIR, not the short one of Ray's processes
        assert list(Path(env["TMPDIR"]).rglob("train-*.arrow"))


def ends_with_one_line_and_goes_on(small_disk: Path, tiny_images: Path, tiny_space: Path, tmp_path: Path):
    arguments = ("--space", tiny_space, "--data", tiny_images, "--model", "shufflenet_v2_x0_5")
    more = ("--set", "image_size=16", "--trials", 1, "--max-epochs", 10, "--study", "s", "--output", small_disk)
    search = Search(*arguments, *more, cwd=tmp_path)
    search.wait_for(r"trial 0 epoch 3/10")  # an epoch's checkpoint follows its record: the second one is written
    hog = fill(small_disk)
    assert search.end() == 1
    lines = [line for line in search.stderr().splitlines() if line]
    assert len(lines) == 1, search.stderr()
    assert str(small_disk) in lines[0] and "is full" in lines[0] and "--resume --study s" in lines[0]
    assert "best.json and the tables may lack the last ones" in lines[0]
    study = load(small_disk / "s")
    assert not [t for t in study.trials if t.state == TrialState.FAIL]
    assert len(study.trials[0].intermediate_values) >= 2
    hog.unlink()
    again = Search("--resume", "--study", "s", "--output", small_disk, cwd=tmp_path)
    resumed = again.wait_for(r"trial 0 .*resumed after epoch (\d+)")
    assert int(resumed.group(1)) >= 2
    assert again.end() == 0, again.stderr()
    assert [t.state for t in load(small_disk / "s").trials].count(TrialState.COMPLETE) >= 1
    assert not re.search("Traceback", again.stderr())


def test_no_temporary_folder_that_can_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    import tempfile

    from bigbatch.train_loop.config import ConfigError
    from bigbatch.train_loop.launch import ray_session

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(private_folder.os, "access", lambda *_: False)
    ray_session.remove_stale_folders()
    with pytest.raises(ConfigError, match="TMPDIR"):
        ray_session.private_ray_folder()
