"""Packed sets that are staged: one copy a node, whole or not there, never of something else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from train_loop import loader_report, run
from train_loop.config import ConfigError, DataConfig
from train_loop.data import open_data, pack, stage
from train_loop.data.packed_files import PackedFiles

REPOSITORY = Path(__file__).parents[1]
READER = """
import sys, time
from train_loop.data import stage
stage.BLOCK_BYTES = 4096
if sys.argv[3] != "0.0":
    read = stage._copy_file
    def slow(source, target):
        print("copying", flush=True)
        result = read(source, target)
        time.sleep(float(sys.argv[3]))
        return result
    stage._copy_file = slow
print(stage.stage(sys.argv[1], sys.argv[2]), flush=True)
"""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 3)):
        for name in "ab":
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (40, 40 + number, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / part / name / f"{number}.png")
    assert pack.main([str(tmp_path / "images"), str(tmp_path / "packed"), "--workers", "1"]) == 0
    return tmp_path / "packed"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_held", {})


def reader(packed: Path, scratch: Path, pause_s: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, packed, scratch, str(pause_s)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_batches_come_from_a_copy_that_equals_the_source(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SCRATCH", str(tmp_path / "scratch"))
    config = DataConfig(name=str(packed), image_size=32)
    wanted, staged = open_data(config), open_data(config, "$MY_SCRATCH/sets")
    (copy,) = (path for path in (tmp_path / "scratch" / "sets").iterdir() if path.is_dir())
    assert files(copy) == files(packed)
    assert wanted.info == staged.info  # checkpoints and plans name the source
    batches = list(wanted.val_batches(4, 0, 1))
    shutil.rmtree(packed)
    for mine, theirs in zip(staged.val_batches(4, 0, 1), batches, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])


def test_several_processes_make_one_copy(packed: Path, tmp_path: Path) -> None:
    readers = [reader(packed, tmp_path / "scratch", 0.1) for _ in range(3)]
    done = [process.communicate(timeout=60) for process in readers]
    assert all(process.returncode == 0 for process in readers), done
    assert sum("staging" in error for _, error in done) == 1
    assert len({output.splitlines()[-1] for output, _ in done}) == 1
    assert sorted(path.suffix for path in (tmp_path / "scratch").iterdir()) == ["", ".lock"]


def test_what_a_killed_process_has_copied_is_not_taken_for_whole(packed: Path, tmp_path: Path) -> None:
    first = reader(packed, tmp_path / "scratch", 10)
    assert first.stdout and first.stdout.readline() == "copying\n"
    second = reader(packed, tmp_path / "scratch")
    assert second.stderr and second.stderr.readline().startswith("waiting for the process that stages")
    assert list((tmp_path / "scratch").glob("*.partial/train-*.arrow"))  # one file of several
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    output, error = second.communicate(timeout=60)
    assert second.returncode == 0 and files(Path(output.strip())) == files(packed), error
    assert not list((tmp_path / "scratch").glob("*.partial"))


def test_a_copy_that_lost_files_is_made_anew(packed: Path, tmp_path: Path) -> None:
    copy = Path(stage.stage(str(packed), str(tmp_path / "scratch")))
    (copy / "train-00000.arrow").unlink()
    stage._held.clear()  # while somebody reads it, it would be waited for
    output, _ = reader(packed, tmp_path / "scratch").communicate(timeout=60)
    assert files(Path(output.strip())) == files(packed)


def test_another_content_is_another_copy_and_the_old_one_goes(packed: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    old = reader(packed, scratch).communicate(timeout=60)[0].strip()
    shutil.rmtree(packed)
    (tmp_path / "images" / "train" / "a" / "0.png").unlink()
    assert pack.main([str(tmp_path / "images"), str(packed), "--workers", "1"]) == 0
    new = stage.stage(str(packed), str(scratch))
    assert new != old and not Path(old).exists() and PackedFiles(new).info.train_size == 11
    # One that is read stays: this process reads the new one while another content comes.
    shutil.rmtree(packed)
    (tmp_path / "images" / "train" / "a" / "1.png").unlink()
    assert pack.main([str(tmp_path / "images"), str(packed), "--workers", "1"]) == 0
    newest = reader(packed, scratch).communicate(timeout=60)[0].strip()
    assert Path(newest).exists() and Path(new).exists()


def test_a_damaged_source_is_not_staged(packed: Path, tmp_path: Path) -> None:
    shard = packed / "train-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ConfigError, match=r"other bytes \(SHA-256\) in .*train-00000.arrow"):
        stage.stage(str(packed), str(tmp_path / "scratch"))
    assert [path.suffix for path in (tmp_path / "scratch").iterdir()] == [".lock"]


def test_too_little_room_and_impossible_folders_are_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_SCRATCH", raising=False)
    for folder in ("$NO_SUCH_SCRATCH/sets", "here"):
        with pytest.raises(ConfigError, match="--stage must be an absolute path"):
            stage.stage(str(packed), folder)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--stage must be a folder that can be written"):
        stage.stage(str(packed), str(tmp_path / "file"))
    room = namedtuple("room", "f_bavail f_frsize")
    monkeypatch.setattr(stage.os, "statvfs", lambda path: room(1, 4096))
    with pytest.raises(ConfigError, match=r"--stage needs .* GB for .*; 4.1e-06 GB are left"):
        stage.stage(str(packed), str(tmp_path / "scratch"))
    with pytest.raises(ConfigError, match="--stage copies packed sets; got digits"):
        open_data(DataConfig(), str(tmp_path / "scratch"))


def test_a_run_stages_by_its_option(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loader_report, "MEASURE_S", 0.05)
    (tmp_path / "config.json").write_text(
        json.dumps({"epochs": 1, "model": {"name": "resnet18"}, "batch": {"global_size": 6}})
    )
    monkeypatch.chdir(tmp_path)
    command = ["--config", "config.json", "--data", str(packed), "--set", "data.image_size=32", "data.loader_workers=1"]
    assert run.main([*command, "--stage", str(tmp_path / "scratch"), "--loader-report", "--on-bad-image", "skip"]) == 0
    shown = capsys.readouterr()
    assert f"staging {packed}" in shown.err
    assert [line.split()[0] for line in shown.out.splitlines()][:3] == ["loader", "model", "bound"]
    assert not (tmp_path / "runs").exists()
    for wrong, words in (
        (["--on-bad-image", "ignore"], "data.on_bad_image must be one of"),
        (["--on-bad-image", "skip", "--set", "data.on_bad_image=fail"], "Keep --on-bad-image."),
        (["--loader-report", "--workers", "2"], "--loader-report measures one worker"),
    ):
        assert run.main([*command, *wrong]) == 2
        assert words in capsys.readouterr().err
