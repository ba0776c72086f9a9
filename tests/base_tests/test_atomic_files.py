"""Files that are replaced: readers, failures, kills, permissions. Nothing else in the packages replaces any."""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbatch.base.atomic_files import PRIVATE, read_json, replacing, write_bytes, write_json, write_text
from helpers.paths import ROOT, product_files

RENAMES_ELSEWHERE = {
    "src/bigbatch/base/private_folder.py",  # an owner's file, seen only once it is locked
    "train_loop/host/once_a_node.py",  # a folder
    "train_loop/data/packing/command.py",  # a folder
    "train_loop/launch/own_report.py",  # a folder
    "tune/storage/drivers.py",  # a folder
    "tune/runs/retry.py",  # a folder
}
"""Files of the packages that rename something by themselves, and what."""


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_reader_sees_the_old_file_or_the_new_one_and_nothing_between(tmp_path: Path) -> None:
    path, sizes = tmp_path / "file", (100_000, 300_000)
    write_bytes(path, b"0" * sizes[0])
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            write_bytes(path, str(number % 10).encode() * sizes[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        content = path.read_bytes()
        assert len(content) in sizes and len(set(content)) == 1
        seen.add(content[:1])
    writer.join()
    assert len(seen) > 1 and os.listdir(tmp_path) == ["file"]


def fail_within(path: Path, **how: Any) -> None:
    with replacing(path, **how) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    for one_writer in (False, True):
        with pytest.raises(KeyboardInterrupt):
            fail_within(path, one_writer=one_writer)
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("one_writer", [False, True])
def test_a_killed_writer_leaves_nothing_that_anyone_reads(tmp_path: Path, one_writer: bool) -> None:
    path = tmp_path / "0001.json"
    write_json(path, {"whole": True})
    code = (
        "import os, sys, signal; from pathlib import Path\n"
        "from bigbatch.base.atomic_files import replacing\n"
        f"with replacing(Path(sys.argv[1]), one_writer={one_writer}) as file:\n"
        "    file.write(b'{'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert read_json(path) == {"whole": True} and list(tmp_path.glob("*.json")) == [path]
    assert len(os.listdir(tmp_path)) == (2 if one_writer else 4), "remains are overwritten where only one writes"
    with replacing(path, one_writer=one_writer) as file:
        file.write(b'{"new": 1}')
    assert read_json(path) == {"new": 1} and len(os.listdir(tmp_path)) == (1 if one_writer else 4)


def test_permissions_are_the_umasks_or_private_also_of_a_file_that_was_open_to_all(tmp_path: Path, umask: None) -> None:
    path = tmp_path / "file"
    write_text(path, "")
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o666)
    write_text(path, "", mode=PRIVATE)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_file_that_was_there_is_kept_where_that_is_asked(tmp_path: Path) -> None:
    path, previous = tmp_path / "latest", tmp_path / "previous"
    for content in (b"1", b"2", b"3"):
        with replacing(path, previous=previous, durable=True) as file:
            file.write(content)
    assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")
    with pytest.raises(KeyboardInterrupt):
        fail_within(path, previous=previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"3", b"2")


def test_what_is_no_json_object_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_json(path) == {}
    for text in ("", "{", "[1]"):
        path.write_text(text)
        assert read_json(path) == {}
    write_json(path, {"ä": [1, None]}, indent=1)
    assert read_json(path) == json.loads(path.read_text()) == {"ä": [1, None]} and path.read_text().endswith("}\n")


def renames(path: Path) -> list[int]:
    """Lines that call ``os.replace``, ``os.rename`` or a path's ``rename`` or ``replace`` with one argument."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            module = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            of_os = module == "os" and node.func.attr in ("replace", "rename", "renames")
            if of_os or (node.func.attr in ("replace", "rename") and len(node.args) == 1):
                found.append(node.lineno)
    return found


def test_nothing_else_in_the_packages_replaces_a_file() -> None:
    found = {str(path.relative_to(ROOT)) for path in product_files() if renames(path)}
    assert found == RENAMES_ELSEWHERE | {"src/bigbatch/base/atomic_files.py"}
