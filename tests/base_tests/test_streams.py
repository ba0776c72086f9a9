"""Output whose reader leaves, as ``| head -1`` does: no command calls that an error."""

import os
import signal
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


def test_a_log_that_is_followed_ends_with_its_reader() -> None:
    """``bigbatch cluster logs 7 -f | head -3``, of a job that goes on."""
    code = (
        "import itertools, sys; from bigbatch.cluster import cli\n"
        "from bigbatch.cluster.submission import queue\n"
        "queue.follow_logs = lambda *a, **k: map('line {}\\n'.format, itertools.count())\n"
        "sys.exit(cli.cluster_main(['logs', '7', '-f']))"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    follow = subprocess.Popen(command, cwd=ROOT / "src", stdout=pipe, stderr=pipe, text=True)
    assert follow.stdout is not None and follow.stderr is not None
    assert [follow.stdout.readline() for _ in range(3)] == ["line 0\n", "line 1\n", "line 2\n"]
    follow.stdout.close()
    assert follow.wait(240) == 0 and follow.stderr.read() == ""


@pytest.mark.parametrize("words", [("cluster", "queue", "--help"), ("studies", "--help")], ids=" ".join)
def test_a_full_disk_is_no_reader_that_left(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "bigbatch", *words],
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


CLEARING_UP = """
import atexit, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored

def clear_up():  # as torch and Ray do for seconds
    print("clearing up", flush=True)
    while True:
        signal.pause()

atexit.register(clear_up)
program, sys.argv = sys.argv[1], sys.argv[1:]
if program == "bigbatch/__main__.py":
    from bigbatch.command import console
    sys.exit(console())
sys.path[0] = program.rpartition("/")[0]
runpy.run_path(program, run_name="__main__")
"""


@pytest.mark.parametrize(
    "words",
    ["train_loop/run.py --config /nosuch.json", "bigbatch/__main__.py tune --trials 0"],
)
def test_ctrl_c_while_python_clears_up_ends_a_command_at_once_with_its_exit_code(words):
    process = subprocess.Popen(
        [sys.executable, "-c", CLEARING_UP, *words.split()],
        cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "clearing up\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 2 and output == ""
    assert errors.count("\n") == 1 and "must be" in errors, errors
