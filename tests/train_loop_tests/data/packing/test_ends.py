"""A pack that is ended by a signal, a killed process, and started again."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.data.packing import command
from helpers.packed_sets import write_images
from helpers.paths import ROOT
from helpers.waiting import wait_until

pytestmark = pytest.mark.without_ray

SLOW_JPEGTRAN = """#!/bin/sh
[ -e "$(dirname "$0")/slow" ] && sleep 0.1
exec cat
"""
"""In place of jpegtran: while a file ``slow`` lies beside it, a shard takes seconds however fast the machine is."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards at 1 MB a shard."""
    return write_images(tmp_path_factory.mktemp("ends") / "images", train=40, val=2, size=(400, 300))


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packs are slow until this file is removed."""
    program = tmp_path / "bin" / "jpegtran"
    program.parent.mkdir()
    program.write_text(SLOW_JPEGTRAN)
    program.chmod(0o755)
    monkeypatch.setenv("JPEGTRAN", str(program))
    (program.parent / "slow").touch()
    return program.parent / "slow"


@pytest.fixture
def packs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Those that were started, each with a session of its own; ended with it whatever a test found."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pack(*words: object) -> int:
    """In this process."""
    return command.main([*map(str, words)])


def test_a_killed_pack_never_looks_finished_and_goes_on(many, tmp_path, slow, packs, capsys):
    options = ("--shard-mb", 1, "--workers", 1)
    target, half = tmp_path / "packed", tmp_path / "packed.packing"
    process = started(many, target, packs, "--workers", "1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGKILL)
    process.wait()
    slow.unlink()
    # Those with a note: the process that wrote may have ended between a shard and its note.
    finished = {note.stem: note.with_suffix("").stat().st_mtime_ns for note in half.glob("*.arrow.json")}
    assert finished and not target.exists()
    with pytest.raises(ConfigError):
        describe_data_set(DataConfig(name=str(half)))
    assert not psutil.wait_procs(children, timeout=120)[1]  # nobody goes on writing

    assert pack(many, target, "--workers", 1, "--shard-mb", 2) == 2
    assert "goes on with the source and options" in capsys.readouterr().err
    assert pack(many, target, *options) == 0
    assert "resuming: " in capsys.readouterr().out
    for name, written in finished.items():
        assert (target / name).stat().st_mtime_ns == written
    assert pack(many, tmp_path / "whole", "--shard-mb", 1, "--workers", 2) == 0 and not half.exists()
    for path in (tmp_path / "whole").iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name


def started(source: Path, target: Path, packs: list[Any], *options: str, **streams: Any) -> subprocess.Popen[bytes]:
    """A pack that has a first shard, in a process group of its own as a shell starts it."""
    words = (str(source), str(target), "--shard-mb", "1", *options)
    line = [sys.executable, "-m", "bigbatch.train_loop.data.packing.command", *words]
    process = subprocess.Popen(line, cwd=ROOT / "src", start_new_session=True, **streams)
    packs.append(process)
    half = target.with_name("packed.packing")
    wait_until(lambda: process.poll() is not None or any(half.glob("*.arrow.json")), "no shard is written")
    assert process.poll() is None
    return process


def at_a_terminal(source: Path, target: Path, packs: list[Any]) -> tuple[subprocess.Popen[bytes], int]:
    here, there = pty.openpty()
    process = started(source, target, packs, "--workers", "2", stdout=there, stderr=there)
    os.close(there)
    return process, here


def all_of(terminal: int) -> str:
    said = b""
    try:
        while text := os.read(terminal, 1 << 16):
            said += text
    except OSError:  # nobody has it open any more
        pass
    os.close(terminal)
    return said.decode()


def test_ctrl_c_at_a_terminal_ends_it_with_one_line_and_it_goes_on(many, tmp_path, slow, packs, capsys):
    """The terminal signals all processes of the group, not only the first."""
    target = tmp_path / "packed"
    process, terminal = at_a_terminal(many, target, packs)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    slow.unlink()
    said = all_of(terminal)
    assert "Traceback" not in said and "bigbatch pack: interrupted; the same command goes on" in said
    assert not target.exists()
    assert pack(many, target, "--shard-mb", 1, "--workers", 1) == 0 and "resuming: " in capsys.readouterr().out
    assert pack("--verify", target) == 0


@pytest.mark.slow
def test_a_process_that_is_killed_ends_it_with_one_line_and_it_goes_on(many, tmp_path, slow, packs):
    target = tmp_path / "packed"
    process, terminal = at_a_terminal(many, target, packs)
    writers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    writers[0].kill()
    assert process.wait(60) == 1
    slow.unlink()
    said = all_of(terminal)
    assert "Traceback" not in said and "failed: a process was killed (memory?); the same command goes on" in said
    assert not psutil.wait_procs(writers, timeout=60)[1] and not target.exists()
    assert pack(many, target, "--shard-mb", 1, "--workers", 1) == 0
