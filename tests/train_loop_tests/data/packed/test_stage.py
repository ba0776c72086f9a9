"""Packed sets that are staged: one copy a node, whole or not there, never of something else."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.packed import stage
from bigbatch.train_loop.data.packed.schema import PackedFiles
from bigbatch.train_loop.host import once_a_node
from helpers.packed_sets import pack_here, same
from helpers.paths import ROOT
from helpers.waiting import wait_until

READER = """
import sys
from bigbatch.train_loop.data.packed import stage
stage.BLOCK_BYTES = 4096
if sys.argv[3] == "held":
    read = stage._copy_file
    def slow(source, target):
        print("copying", flush=True)
        result = read(source, target)
        sys.stdin.read()  # until the test closes it
        return result
    stage._copy_file = slow
print(stage.stage_packed_set(sys.argv[1], sys.argv[2]), flush=True)
"""


@pytest.fixture
def packed(tmp_path: Path, tiny_images: Path, packed_images: Path) -> Path:
    shutil.copytree(tiny_images, tmp_path / "images")
    return shutil.copytree(packed_images, tmp_path / "packed")


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_a_node, "_held", {})


def reader(packed: Path, scratch: Path, how: str = "at once", **streams: Any) -> subprocess.Popen[str]:
    """``held``: a copy of a file ends only when standard input does."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-c", READER, str(packed), str(scratch), how]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True, **streams)


def pack_without(packed: Path, image: str) -> None:
    shutil.rmtree(packed)
    (packed.parent / "images" / "train" / "dark" / image).unlink()
    pack_here(packed.parent / "images", packed)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_batches_come_from_a_copy_that_equals_the_source(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SCRATCH", str(tmp_path / "scratch"))
    config = DataConfig(name=str(packed), image_size=32)
    wanted, staged = open_data(config), open_data(config, "$MY_SCRATCH/sets")
    (copy,) = (path for path in (tmp_path / "scratch" / "sets").iterdir() if path.is_dir())
    assert files(copy) == files(packed)
    assert wanted.info == staged.info  # checkpoints and plans name the source
    batches = list(wanted.val_batches(4, 0, 1))
    shutil.rmtree(packed)
    assert same(list(staged.val_batches(4, 0, 1)), batches)


def test_several_processes_make_one_copy(packed: Path, tmp_path: Path) -> None:
    logs = [tmp_path / f"reader{number}.log" for number in range(3)]
    readers = []
    for log in logs:
        with log.open("w") as file:
            readers.append(reader(packed, tmp_path / "scratch", "held", stdout=file, stderr=file))

    def said() -> str:
        return "".join(log.read_text() for log in logs)

    wait_until(lambda: said().count("waiting for the process that stages") == 2, said)
    for process in readers:
        assert process.stdin
        process.stdin.close()
    for process in readers:
        process.wait(240)
    assert all(process.returncode == 0 for process in readers), said()
    assert said().count("staging ") == 1
    assert len({log.read_text().splitlines()[-1] for log in logs}) == 1
    assert sorted(path.suffix for path in (tmp_path / "scratch").iterdir()) == ["", ".lock"]


def test_what_a_killed_process_has_copied_is_not_taken_for_whole(packed: Path, tmp_path: Path) -> None:
    first = reader(packed, tmp_path / "scratch", "held")
    assert first.stdout and first.stdout.readline() == "copying\n"
    second = reader(packed, tmp_path / "scratch")
    assert second.stderr and second.stderr.readline().startswith("waiting for the process that stages")
    assert list((tmp_path / "scratch").glob("*.partial/train-*.arrow"))  # one file of several
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    output, error = second.communicate(timeout=240)
    assert second.returncode == 0 and files(Path(output.strip())) == files(packed), error
    assert not list((tmp_path / "scratch").glob("*.partial"))


def test_another_content_is_another_copy_and_the_old_one_goes(packed: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    old = reader(packed, scratch).communicate(timeout=240)[0].strip()
    pack_without(packed, "000.png")
    new = stage.stage_packed_set(str(packed), str(scratch))
    assert new != old and not Path(old).exists() and PackedFiles(new).info.train_size == 63
    # One that is read stays: this process reads the new one while another content comes.
    pack_without(packed, "001.png")
    newest = reader(packed, scratch).communicate(timeout=240)[0].strip()
    assert Path(newest).exists() and Path(new).exists()


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("$NO_SUCH_SCRATCH/sets", "--stage must be an absolute path"),
        ("$RELATIVE", "--stage must be an absolute path"),
        ("{}/images/train/dark/000.png", "--stage must be a folder that can be written"),
        ("{}/scratch", "--stage needs .* GB for .*; 4.1e-06 GB are left"),
    ],
)
def test_a_node_that_cannot_stage_says_why_and_reads_the_set_itself(
    packed, tmp_path, monkeypatch, caplog, folder, words
):
    monkeypatch.delenv("NO_SUCH_SCRATCH", raising=False)
    monkeypatch.setenv("RELATIVE", "here")
    room = namedtuple("room", "f_bavail f_frsize")
    monkeypatch.setattr(stage.os, "statvfs", lambda path: room(1, 4096))
    config = DataConfig(name=str(packed), image_size=32)
    found = list(open_data(config, folder.format(tmp_path)).val_batches(4, 0, 1))
    assert re.search(f"{words}.*Reading {packed} itself", caplog.text)
    assert same(found, list(open_data(config).val_batches(4, 0, 1)))


def test_a_damaged_set_stays_an_error_and_is_not_staged(packed: Path, tmp_path: Path) -> None:
    shard = packed / "train-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ConfigError, match=r"other bytes \(SHA-256\) in .*train-00000.arrow"):
        open_data(DataConfig(name=str(packed), image_size=32), str(tmp_path / "scratch"))
    assert [path.suffix for path in (tmp_path / "scratch").iterdir()] == [".lock"]


def test_tmpdir_is_the_users_also_where_ray_has_its_own(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "bbn-1-abcd"))
    monkeypatch.setenv("BIGBATCH_USER_TMPDIR", str(tmp_path / "mine"))
    for folder in ("$TMPDIR/sets", "${TMPDIR}/sets"):
        assert Path(stage.stage_packed_set(str(packed), folder)).parent == tmp_path / "mine" / "sets"
    monkeypatch.setenv("BIGBATCH_USER_TMPDIR", "")  # the user has none: Ray's goes with the job, and may be memory
    with pytest.raises(stage.StageError, match="must be an absolute path"):
        stage.stage_packed_set(str(packed), "$TMPDIR/sets")
    assert not (tmp_path / "bbn-1-abcd").exists()
