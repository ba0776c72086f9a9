"""``bigbatch scale`` with real processes, really killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch.tune.scaling.scaling_table import read_sizes
from bigbatch.tune.scaling.size_process import SizeFailed, run_child
from helpers.processes import clean_environment, wait_gone
from helpers.waiting import wait_until

SMALL = ("model.name=squeezenet1_1", "model.stem=auto", "data.image_size=32", "batch.global_size=32")


def test_a_process_that_fails_is_a_failed_size() -> None:
    with pytest.raises(SizeFailed, match="exit code 7"):
        run_child((sys.executable, "-c", "raise SystemExit(7)"), dict(os.environ))


def started(child: str, folder: Path) -> tuple[subprocess.Popen, Path]:
    """A process that runs ``child`` as a size's, once it has begun, and what ``child`` writes."""
    parent = (
        "import os, signal, sys\n"
        "from bigbatch.tune.scaling.size_process import ScaleStopped, run_child\n"
        f"try: run_child((sys.executable, '-u', '-c', {child!r}), dict(os.environ))\n"
        "except ScaleStopped as stop: sys.exit(100 + stop.signum)\n"
    )
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", parent], env=clean_environment(), cwd=folder, stdout=file)
    wait_until(lambda: "begun\n" in log.read_text(), lambda: "it has not begun", 240)
    return process, log


def test_a_process_ends_with_a_study_that_was_killed(tmp_path: Path) -> None:
    """Nobody could tell it: the kernel does."""
    mark = str(tmp_path / "a-process-of-a-size")
    process, _ = started(f"import signal; {mark!r}; print('begun'); signal.pause()", tmp_path)
    process.kill()
    process.wait()
    wait_gone(mark)


def test_a_stop_signal_reaches_the_process_once(tmp_path: Path) -> None:
    """SIGTERM is what a training answers with a checkpoint. The process here counts the signals that it gets."""
    child = (
        "import signal, sys, os\n"
        "def said(n, f): print('got', n); sys.exit(128 + n)\n"
        "signal.signal(signal.SIGTERM, said)\n"
        "print('begun')\n"
        "while True: signal.pause()\n"
    )
    process, log = started(child, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == 100 + signal.SIGTERM
    assert log.read_text().count("got 15\n") == 1


@pytest.mark.exhaustive
def test_one_and_two_workers_really_killed_and_gone_on(tmp_path: Path) -> None:
    words = [
        sys.executable, "-m", "bigbatch", "scale", "--recipe", "cifar10-sgd-128", "--data", "digits", "--subset", "0.1",
        "--workers", "1,2", "--epochs", "2", "--output", "out", "--set", *SMALL,
    ]  # fmt: skip
    env = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((out / "2.json").exists, lambda: "the second size has not begun", 500)
    process.kill()
    process.wait()
    wait_gone(f"{out}/2")
    first = out / "1" / "result.json"
    kept = first.stat().st_mtime_ns
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.stat().st_mtime_ns == kept, "the first size was done"
    one, two = read_sizes(out)
    assert (one.config.batch.global_size, two.config.batch.global_size) == (32, 64)
    assert "EFFICIENCY" in done.stdout
