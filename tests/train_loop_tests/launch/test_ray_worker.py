"""A full run under Ray Train, as ``python train_loop/run.py`` starts it: kill, resume, Ctrl-C."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from helpers.paths import TRAIN
from helpers.processes import clean_environment, wait_gone
from helpers.ranks import write_config
from helpers.searches import ray_folder_below

EPOCHS = 60
"""Enough that a signal arrives before the end."""


@pytest.fixture
def best_json(tiny_images: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path, tiny_images)


def start(*arguments: object, cwd: Path) -> subprocess.Popen:
    command = [sys.executable, str(TRAIN), *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def read_until_epoch(process: subprocess.Popen, epoch: int) -> list[str]:
    """Read until an epoch from ``epoch`` on is shown: what was killed may have trained on before it died."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        match = re.match(r"epoch +(\d+)/", line)
        if match and int(match[1]) >= epoch:
            return lines
    raise AssertionError("".join(lines) + process.stderr.read())


@pytest.mark.parametrize("stops", [
    pytest.param(((signal.SIGINT, 130, 8),), marks=pytest.mark.slow),
    pytest.param(((signal.SIGTERM, 143, 8), (signal.SIGINT, 130, 16)), marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_a_full_run_on_two_workers_survives_a_kill_and_signals_and_trains_each_epoch_once(best_json, tmp_path, stops):
    """The driver is killed, and later a worker."""
    changes = (f"epochs={EPOCHS}", "data.loader.workers=1")  # loader processes inside Ray workers end with them
    arguments: tuple[object, ...] = ("--config", best_json, "--set", *changes, "--workers", 2, "--output", "full")
    arguments = (*arguments, "--checkpoint-every-s", 1)
    first = start(*arguments, cwd=tmp_path)
    read_until_epoch(first, 3)
    family = [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # suspended, it does not come to its end meanwhile
            process.suspend()
    second = start(*arguments, cwd=tmp_path)
    _, errors = second.communicate(timeout=240)
    assert second.returncode == 2 and f"process {first.pid}" in errors, "two runs never write one folder"
    assert len(errors.strip().splitlines()) == 1
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # those that are left end by themselves, too
            process.kill()
    first.wait()

    for signum, code, epoch in stops:
        stopped = start(*arguments, cwd=tmp_path)
        read_until_epoch(stopped, epoch)
        os.killpg(stopped.pid, signum)  # a terminal, timeout, a batch system: the whole group
        _, errors = stopped.communicate(timeout=300)
        assert stopped.returncode == code and "To resume: repeat the command" in errors, errors
        assert "Traceback" not in errors
        assert (tmp_path / "full" / "checkpoints" / "latest.pt").exists()

    third = start(*arguments, cwd=tmp_path)
    read_until_epoch(third, stops[-1][2] + 1)
    folder = ray_folder_below(third.pid)
    below = psutil.Process(third.pid).children(recursive=True)
    next(process for process in below if "ray::RayTrainWorker" in " ".join(process.cmdline())).kill()
    _, errors = third.communicate(timeout=900)
    assert third.returncode == 0, errors
    assert errors.count("the workers start again (1 of at most 3 times)") == errors.count("died without a word") == 1
    result = json.loads((tmp_path / "full" / "result.json").read_text())
    assert [r["epoch"] for r in result["history"]] == list(range(1, EPOCHS + 1))
    assert result["record"]["workers"] == 2 and result["config"]["epochs"] == EPOCHS
    resumed = result["history"][-1]["resumed_from_epoch"]
    assert resumed is not None and resumed >= stops[-1][2] - 1, (
        "it went on from the checkpoint, not from the first epoch"
    )
    assert folder and not Path(folder).exists()
    wait_gone(folder)
