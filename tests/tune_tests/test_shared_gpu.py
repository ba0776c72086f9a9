"""A whole search whose trials share a GPU: real where there is one, else a number that Ray hands out in parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.tune.runs.run import TRIALS_PER_GPU_ATTR
from helpers.paths import TUNE
from helpers.pretended_gpu import pretended_gpu
from helpers.searches import load

OWN = '''"""Trials 0 and 1 begin together on one GPU. While trial 1 shares the GPU, it lacks memory."""
import os, pathlib
import torch

HERE = pathlib.Path(__file__).parent

def space(trial, workload):
    trial.suggest_float("unused", 0.0, 1.0)
    return {"number": trial.number}

def log(*words):
    with (HERE / "log").open("a") as file:
        print(*words, file=file)

def train(config, report, resume):
    import ray
    number, shared = config["number"], int(os.environ["BIGBATCH_TRIALS_PER_GPU"])
    log(number, shared, ray.get_gpu_ids(), "begins")
    if shared == 2:
        open(HERE / "meeting", "rw"[number]).close()  # a pipe: each waits there for the other
    if number == 1:
        take_memory(shared)
    report(epoch=1, value=0.5)
    log(number, shared, ray.get_gpu_ids(), "ends")

def take_memory(shared):
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
    elif shared > 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.60 GiB")
'''


@pytest.mark.parametrize(
    "gpu", [pytest.param("pretended", marks=pytest.mark.slow), pytest.param("real", marks=pytest.mark.gpu)]
)
def test_two_trials_share_a_gpu_until_one_lacks_memory_which_is_then_repeated_alone(run_command, tmp_path: Path, gpu):
    (tmp_path / "own.py").write_text(OWN)
    os.mkfifo(tmp_path / "meeting")
    env = pretended_gpu(tmp_path / "site") if gpu == "pretended" else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    own = ("--trainable", "own.py:train", "--space", "own.py", "--objective", "value:max", "--study", "s")
    words = "--strategy random --stopping none --max-epochs 1 --confirm none --trials 2 --trials-per-gpu 2".split()
    done = run_command(TUNE, *own, *words, timeout_s=500, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials share each GPU (--trials-per-gpu): each has at most 45 % of its memory" in " ".join(
        done.stdout.split()
    )
    assert "each trial has a GPU of its own from now on: 2 had too little memory" in done.stdout

    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert all(line[2] == "[0]" for line in log), "the same GPU"
    begun = [(int(number), int(shared)) for number, shared, *_, what in log if what == "begins"]
    assert sorted(begun[:2]) == [(0, 2), (1, 2)] and begun[2:] == [(1, 1)], begun

    study = tmp_path / "runs" / "s"
    trials = load(study).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    assert [t.user_attrs.get(TRIALS_PER_GPU_ATTR) for t in trials] == [2, 1]
    assert [t.user_attrs["attempts"] for t in trials] == [1, 2]
    (session,) = (json.loads(path.read_text()) for path in (study / "ledger").glob("*.json"))
    used = session["trial_device_s"]
    assert session["devices_held"] == 1 and 0 < sum(used.values()) <= session["held_device_s"]

    again = run_command(TUNE, "--resume", "--study", "s", "--trials", 3, "--dry-run", timeout_s=200, **env)
    assert "1 trial on each GPU: in this study 2 had too little memory" in again.stdout, again.stdout + again.stderr
