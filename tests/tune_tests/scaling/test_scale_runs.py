"""``bigbatch scale`` with real processes, really killed."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch.tune.commands.scale import scale_main
from bigbatch.tune.scaling.size_process import SizeCommand, SizeDiverged, SizeFailed, run_child
from helpers.processes import clean_environment, wait_gone
from helpers.scaled_sizes import Trainings
from helpers.waiting import wait_until

SMALL = ("model.name=squeezenet1_1", "model.stem=auto", "data.image_size=32", "batch.global_size=32")


def python(code: str) -> SizeCommand:
    return SizeCommand("a made process", (sys.executable, "-c", code), signal.SIGKILL)


def test_a_process_that_fails_is_named_by_its_own_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('error: the disk is full'); print('bye'); raise SystemExit(7)"
    with pytest.raises(SizeFailed, match=r"exit code 7: error: the disk is full \(all of it in .*log.txt\)"):
        run_child(python(code), tmp_path / "log.txt", dict(os.environ))
    assert "    bye\n" in capfd.readouterr().out
    assert (tmp_path / "log.txt").read_text().splitlines()[-1] == "bye"


def test_a_process_ends_with_a_study_that_was_killed(tmp_path: Path) -> None:
    """Nobody could tell it: the kernel does."""
    mark = str(tmp_path / "a-process-of-a-size")
    child = f"import signal; print({mark!r}, flush=True); signal.pause()"
    parent = (
        "import os, signal, sys; from pathlib import Path\n"
        "from bigbatch.tune.scaling.size_process import SizeCommand, run_child\n"
        f"command = SizeCommand('waits', (sys.executable, '-c', {child!r}), signal.SIGKILL)\n"
        f"run_child(command, Path({str(tmp_path / 'log.txt')!r}), dict(os.environ))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], env=clean_environment(), cwd=tmp_path)
    log = tmp_path / "log.txt"
    wait_until(lambda: log.exists() and f"\n{mark}\n" in log.read_text(), lambda: "it has not begun", 240)
    process.kill()
    process.wait()
    wait_gone(mark)


def test_a_stop_signal_reaches_the_process_once(tmp_path: Path) -> None:
    """SIGTERM is what a training answers with a checkpoint. The process here counts the signals that it gets."""
    child = (
        "import signal, sys, os\n"
        "def said(n, f): print('got', n, flush=True); sys.exit(128 + n)\n"
        "signal.signal(signal.SIGTERM, said)\n"
        "print('begun', flush=True)\n"
        "while True: signal.pause()\n"
    )
    parent = (
        "import os, signal, sys; from pathlib import Path\n"
        "from bigbatch.tune.scaling.size_process import ScaleStopped, SizeCommand, run_child\n"
        f"command = SizeCommand('waits', (sys.executable, '-c', {child!r}), signal.SIGKILL)\n"
        "try: run_child(command, Path('log.txt'), dict(os.environ))\n"
        "except ScaleStopped as stop: sys.exit(100 + stop.signum)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], env=clean_environment(), cwd=tmp_path)
    log = tmp_path / "log.txt"
    wait_until(lambda: log.exists() and "\nbegun\n" in log.read_text(), lambda: "it has not begun", 240)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == 100 + signal.SIGTERM
    assert log.read_text().count("got 15\n") == 1


@pytest.mark.exhaustive
def test_one_and_two_workers_really_killed_and_gone_on(tmp_path: Path) -> None:
    words = [
        sys.executable, "-m", "bigbatch", "scale", "--recipe", "cifar10-sgd-128", "--data", "digits", "--subset", "0.1",
        "--workers", "1,2", "--epochs", "1", "--profile-steps", "2", "--output", "out", "--set", *SMALL,
    ]  # fmt: skip
    env = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    second = out / "sizes" / "2" / "log.txt"
    wait_until(second.exists, lambda: "the second size has not begun", 500)
    process.kill()
    process.wait()
    wait_gone(f"{out}/sizes")
    first = out / "sizes" / "1" / "size.json"
    kept = first.stat().st_mtime_ns
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.stat().st_mtime_ns == kept, "the first size was done"
    found = json.loads((out / "scaling.json").read_text())
    one, two = found["sizes"]
    assert (one["global_size"], two["global_size"]) == (32, 64)
    assert one["communication_s"] == 0 < two["step_s"]
    result = json.loads((out / "sizes" / "2" / "run" / "result.json").read_text())
    assert result["workers"] == 2
    assert two["objective"] == result["record"]["val_top1"]
    assert two["images_per_s"] == result["record"]["images_per_s"]
    assert "multi-core" in done.stdout


@pytest.mark.exhaustive
def test_a_search_at_a_size_goes_on_after_a_kill_and_its_best_is_trained(tmp_path: Path) -> None:
    words = [  # enough to learn: what has not learned is not trained
        sys.executable, "-m", "bigbatch", "scale", "--recipe", "cifar10-sgd-128", "--data", "digits", "--subset", "0.5",
        "--workers", "1", "--epochs", "2", "--profile-steps", "1", "--retune", "2", "--output", "out",
        "--set", "model.name=resnet18", "data.image_size=16", "batch.global_size=32",
    ]  # fmt: skip
    env = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "out" / "sizes" / "1"
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    best = folder / "retune" / "best.json"
    wait_until((folder / "retune" / "study.json").exists, lambda: "the search has not begun", 500)
    process.kill()
    process.wait()
    wait_gone(f"{folder}")
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(best.read_text())
    trained = json.loads((folder / "run" / "config.json").read_text())
    assert trained["optimizer"] == found["optimizer"] and trained["schedule"] == found["schedule"]
    (one,) = json.loads((tmp_path / "out" / "scaling.json").read_text())["sizes"]
    assert one["searched"] and one["peak_lr"] == found["optimizer"]["peak_lr"]
    log = (folder / "log.txt").read_text()
    assert log.count("$ bigbatch tune") == 2 and "tune --resume" in log
    assert "(searched)" in done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_a_real_training_that_diverges_is_told_from_one_that_fails(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bigbatch", "train", "--recipe", "cifar10-sgd-128", "--data", "digits"]
    words += ["--subset", "0.1", "--output", str(tmp_path / "run")]
    words += ["--set", *SMALL, "optimizer.peak_lr=9999", "epochs=2"]
    command = SizeCommand("a training", tuple(words), signal.SIGKILL)
    env = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    with pytest.raises(SizeDiverged, match="loss is"):
        run_child(command, tmp_path / "log.txt", env)


def test_the_command_of_a_row_can_be_pasted(best: Path, trainings: Trainings, capsys) -> None:
    words = ["--config", str(best), "--output", "an output", "--workers", "1,2", "--epochs", "1"]
    assert scale_main(words) == 0
    told = capsys.readouterr().out
    line = next(one for one in told.splitlines() if one.endswith("--workers N"))
    assert shlex.split(line)[2:] == ["--config", "an output/sizes/N/config.json", "--workers", "N"]
    assert "AFTER 1 EPOCH\n" in told and "1 epoch of training" in told
