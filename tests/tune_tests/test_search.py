"""Whole searches with a real Ray, a real study and real training, as a user starts them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.packing import command as pack_command
from helpers.paths import ROOT
from helpers.processes import clean_environment, wait_gone
from helpers.searches import Search, load
from helpers.wandb_server import WandbServer


@pytest.mark.slow
def test_a_search_from_plan_to_best_configuration(tiny, tmp_path):
    """All of it in one run: folder, states, links, early stops, W&B, clean end."""
    arguments = (*tiny, "--study", "s", "--trials", 5, "--max-epochs", 4)
    arguments += ("--wandb", "offline")
    search = Search(*arguments, cwd=tmp_path, HTTPS_PROXY="http://127.0.0.1:9")
    search.wait_for(r"trial 0 epoch 1/4")
    folder = Path(search.ray_folder)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "token").stat().st_mode & 0o777 == 0o600
    workers = search.workers()
    assert workers and all("RAY_ADDRESS" in environment for environment in workers.values())
    assert search.end() == 0, search.stderr()
    wait_gone(str(folder))
    assert not folder.exists(), "nothing of Ray is left"
    text = "".join(search.lines)
    assert not search.stderr().strip(), "nothing floods the terminal"
    assert "The best is trial" in text and "onfirmed with fresh seeds" in text
    assert "train_loop/run.py --config runs/s/best.json" in text

    study = load(tmp_path / "runs" / "s")
    states = [t.state for t in study.trials]
    assert len(states) == 5 and TrialState.COMPLETE in states
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len({t.user_attrs["ray_trial_id"] for t in study.trials}) == 5
    for trial in study.trials:
        assert list(trial.intermediate_values) == list(range(1, len(trial.intermediate_values) + 1))
        assert len(trial.intermediate_values) in (
            (4,) if trial.state == TrialState.COMPLETE else (1, 3)
        )  # ASHA's rungs
    check_folder(tmp_path / "runs" / "s", study)
    check_wandb(study, text)


def check_folder(folder: Path, study: optuna.Study) -> None:
    description = json.loads((folder / "study.json").read_text())
    session = description["sessions"][0]
    assert description["seed"] == 1 and session["outcome"] == "ended" and session["packages"]["ray"]
    best = TrainConfig.from_json((folder / "best.json").read_text())
    assert best == TrainConfig.from_dict(study.best_trial.user_attrs["config"])
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert [r["state"] for r in rows] == [t.state.name for t in study.trials]
    epochs = pq.read_table(folder / "epochs.parquet").to_pylist()
    assert len(epochs) == sum(len(t.intermediate_values) for t in study.trials)
    assert all(0 <= e["val_top1"] <= 1 and e["train_s"] > 0 for e in epochs)
    assert [p.name for p in (folder / "checkpoints").iterdir()] == [f"trial-{study.best_trial.number:04d}"]
    assert (folder / "logs" / "trial-0000.log").read_text().count("epoch=") >= 1


def check_wandb(study: optuna.Study, text: str) -> None:
    """The printed command sends one run a trial, with configuration and epoch metrics."""
    command = next(line for line in text.splitlines() if "wandb sync" in line)
    with WandbServer() as server:
        sync = subprocess.run(
            command, shell=True, capture_output=True, text=True, env={**tool_environment(), **server.environment}
        )
    assert sync.returncode == 0 and sorted(server.runs) == [f"s-{t.number:04d}" for t in study.trials]
    for trial in study.trials:
        run = server.runs[f"s-{trial.number:04d}"]
        rate = run.config["optimizer"]["value"]["peak_lr"]
        assert run.names["groupName"] == "s" and rate == pytest.approx(trial.params["peak_lr"])
        assert [line["val_top1"] for line in run.history] == pytest.approx(list(trial.intermediate_values.values()))


def tool_environment() -> dict[str, str]:
    """Tools of the test's virtual environment first on PATH."""
    environment = clean_environment()
    return {**environment, "PATH": os.path.dirname(sys.executable) + os.pathsep + environment["PATH"]}


@pytest.mark.exhaustive
def test_early_stops_give_resources_back_beside_another_ray_cluster(tmp_path):
    """Stock Ray Train asks the wrong cluster here, and the search hangs after its first early stop."""
    code = "import ray, signal; ray.init(address='local', num_cpus=1); print('up', flush=True); signal.pause()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=clean_environment(), cwd=tmp_path,
    )  # fmt: skip
    try:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        arguments = ("--space", "smoke", "--study", "s", "--trials", 3, "--workers", 2)
        search = Search(*arguments, cwd=tmp_path)
        assert search.end() == 0, search.stderr()
        states = [t.state for t in load(tmp_path / "runs" / "s").trials]
        assert len(states) == 3 and states.count(TrialState.PRUNED) >= 1
        assert other.poll() is None, "the other cluster lives on"
        assert any(p.name() == "raylet" for p in psutil.Process(other.pid).children(recursive=True))
    finally:
        other.terminate()  # Ray ends with it; SIGINT may be ignored where the tests were started
        other.wait(120)


@pytest.mark.slow
def test_it_joins_a_running_cluster_and_leaves_it_running_and_two_objectives_end_with_their_front(
    tiny, tiny_images, tmp_path
):
    """Also: what a worker meets on its node, here a variable that only the driver has, is said on the screen, once."""
    assert pack_command.main([str(tiny_images), str(tmp_path / "packed"), "--workers", "1"]) == 0
    tiny = (*tiny, "--data", str(tmp_path / "packed"), "--stage", "$ONLY_OF_THE_DRIVER/sets")
    code = (
        "import signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from bigbatch.train_loop.launch.ray_session import LocalRay\n"
        "with LocalRay(2, 0, Path('cluster.log')) as c:\n"
        "    print(c.address, c.token_path, flush=True); signal.pause()"
    )
    command, env = [sys.executable, "-c", code, str(ROOT / "src")], clean_environment()
    cluster = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=env)
    try:
        address, token = cluster.stdout.readline().split()
        arguments = (*tiny, "--study", "s", "--trials", 2, "--max-epochs", 2, "--address", address)
        refused = Search(*arguments, cwd=tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert refused.end() == 2 and "--address" in refused.stderr()
        asked = (*arguments, "--set", "sync_bn=true")
        cannot = Search(*asked, cwd=tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
        assert cannot.end() == 2 and cannot.stderr().count("\n") == 1
        assert "a node with 2 CPU cores" in cannot.stderr() and "sync_bn needs GPUs" in cannot.stderr()
        assert not (tmp_path / "runs" / "s").exists(), "no study is left"
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token, "ONLY_OF_THE_DRIVER": str(tmp_path)}
        # Trials this small learn little.
        chosen = ("--objectives", "val_loss:min,gpu_hours:min", "--baseline", "val_loss=1e9")
        joined = Search(*(a if a != "s" else "t" for a in arguments), *chosen, cwd=tmp_path, **variables)
        assert joined.end() == 0, joined.stderr()
        said = [line for line in joined.stderr().splitlines() if "Set the variable there" in line]
        assert len(said) == 1 and re.match(r"warning: trial \d: on \S+: --stage must be", said[0]), joined.stderr()
        check_front(tmp_path / "runs" / "t", "".join(joined.lines))
        assert cluster.poll() is None
    finally:
        cluster.terminate()
        cluster.wait(120)


def check_front(folder: Path, text: str) -> None:
    study = load(folder)
    assert [(t.state, len(t.values)) for t in study.trials] == [(TrialState.COMPLETE, 2)] * 2
    front = json.loads((folder / "pareto.json").read_text())["front"]
    assert sorted(row["trial"] for row in front) == sorted(t.number for t in study.best_trials)
    for row in front:
        trial = study.trials[row["trial"]]
        assert row["values"] == {"val_loss": trial.values[0], "gpu_hours": trial.values[1]}
        # The value is taken a moment before the trial's devices are given back: within a second of one device.
        assert trial.values[1] == pytest.approx(trial.user_attrs["gpu_hours"], abs=1 / 3600)
    lowest = min(study.trials, key=lambda t: t.values[0])
    assert json.loads((folder / "best.json").read_text()) == lowest.user_attrs["config"]
    assert "Pareto front" in text and f"Best: trial {lowest.number}, validation loss" in text
    epochs = pq.read_table(folder / "epochs.parquet").to_pylist()
    assert all(row["memory_bytes"] > 2**26 for row in epochs), "a process with torch has more than 64 MiB"


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_the_main_command_finds_a_good_large_batch_configuration(tmp_path):
    search = Search("--space", "large_batch", "--study", "s", cwd=tmp_path)
    assert search.end(1500) == 0, search.stderr()
    trials = load(tmp_path / "runs" / "s").trials
    assert len(trials) >= 12 and any(t.state == TrialState.PRUNED for t in trials)
    assert max(t.value for t in trials if t.state == TrialState.COMPLETE) >= 0.97
    assert min(t.user_attrs["config"]["batch"]["global_size"] for t in trials) >= 128
