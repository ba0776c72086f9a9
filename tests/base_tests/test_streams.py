"""Output whose reader leaves, as ``| head -1`` does: no command calls that an error."""

import os
import subprocess
import sys

import pytest

from helpers.paths import ROOT, TRAIN, TUNE
from helpers.processes import clean_environment

CONSOLE = "import sys; from bigbatch.command import main; sys.exit(main())"
SHOWS = (
    ("-c", CONSOLE, "tune", "--space", "smoke", "--dry-run"),
    (str(TUNE), "--space", "smoke", "--dry-run"),
    (str(TRAIN), "--help"),
    ("-m", "bigbatch", "cluster", "submit", "--dry-run", "--no-check", "--cpus-per-node", "2", "--space", "smoke"),
)
LEFT = [(SHOWS[0], "stderr"), *((words, "stdout") for words in SHOWS[1:])]


@pytest.mark.parametrize(("words", "closed"), LEFT, ids=[f"{closed} {' '.join(words[-3:])}" for words, closed in LEFT])
def test_a_reader_that_has_left_is_no_error(words, closed, tmp_path) -> None:
    """What ``| head -1`` does, and before the first line."""
    read, write = os.pipe()
    os.close(read)
    env = {**clean_environment(), "PYTHONPATH": str(ROOT / "src"), "BIGBATCH_HOME": str(tmp_path / "home")}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: write}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, timeout=240, **streams)  # type: ignore[call-overload]
    os.close(write)
    assert done.returncode == 0, done
    assert not done.stderr, done.stderr


def test_a_full_disk_is_no_reader_that_left() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "bigbatch", "studies", "--help"],
            cwd=ROOT / "src", stdout=full, stderr=subprocess.PIPE, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device. Write it elsewhere.\n"


def test_wrong_input_keeps_its_exit_code_where_nobody_reads() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(TUNE), "--trials", "many"]
    assert subprocess.run(command, stderr=write, stdout=write, env=clean_environment(), timeout=240).returncode == 2
    os.close(write)
