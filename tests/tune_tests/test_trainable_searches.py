"""Searches over functions of the user's own on a real Ray."""

import os
import signal

import psutil
import pyarrow.parquet as pq
import pytest
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.runs.run import CONTINUES_ATTR, DIVERGED_ATTR, FAILURE_ATTR, epoch_records, is_paused
from helpers.searches import Search, load

EPOCHS = 10
ASKED = ("--strategy", "random", "--stopping", "look", "--trials", 4, "--max-epochs", EPOCHS, "--study", "s")
CURVES = '''"""Learning curves without any learning. Each epoch leaves a checkpoint."""

def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0)}

def train(config, report, resume):
    done = int((resume / "epoch").read_text()) if resume else 0
    for epoch in range(done + 1, config["epochs"] + 1):
        (report.checkpoint_folder / "epoch").write_text(str(epoch))
        report(epoch=epoch, value=config["lr"] * epoch / config["epochs"])

def forgets(config, report, resume):
    """It leaves no checkpoint."""
    assert resume is None
    for epoch in range(1, config["epochs"] + 1):
        report(epoch=epoch, value=config["lr"] * epoch / config["epochs"])
'''


def shown(trial: FrozenTrial) -> list[float]:
    """What the epochs of a trial were worth."""
    return [trial.intermediate_values[epoch] for epoch in sorted(trial.intermediate_values)]


@pytest.mark.exhaustive  # with our loop: test_own_searches.py
@pytest.mark.parametrize("name", ["train", "forgets"])
def test_paused_trials_go_on_after_kill_9_and_no_epoch_is_lost_or_counted_twice(name, tmp_path):
    """The second function knows no checkpoints."""
    (tmp_path / "own.py").write_text(CURVES)
    own = ("--trainable", f"own.py:{name}", "--space", "own.py", "--objective", "value:max")
    search = Search(*own, *ASKED, cwd=tmp_path)
    search.wait_for(r"paused at", count=2)
    os.killpg(search.process.pid, signal.SIGKILL)
    search.process.wait()
    again = Search("--resume", "--study", "s", cwd=tmp_path)
    assert again.end() == 0, again.stderr()
    trials = load(tmp_path / "runs" / "s").trials
    paused, continued = [t for t in trials if is_paused(t)], [t for t in trials if CONTINUES_ATTR in t.user_attrs]
    assert paused and continued and len(trials) - len(continued) == 4
    for trial in continued:
        before, after = trials[trial.user_attrs[CONTINUES_ATTR]], epoch_records(trial)
        assert trial.state == TrialState.COMPLETE and trial.params == before.params
        assert [r["epoch"] for r in after] == list(range(1, EPOCHS + 1))
        assert shown(trial)[: len(shown(before))] == pytest.approx(shown(before))
        assert (after[-1].get("resumed_from_epoch") is None) == (name == "forgets")
    rows = pq.read_table(tmp_path / "runs" / "s" / "epochs.parquet").to_pylist()
    assert len(rows) == len({(row["trial"], row["epoch"]) for row in rows})
    assert len(rows) == sum(len(t.intermediate_values) for t in trials)


ENDS = '''"""Each trial ends in another way. Ray is imported before the search has set its variables."""
import ray.train
import torch
KINDS = ["nan", "raises", "silent", "returns", "back", "late", "one", "half"]

def space(trial, workload):
    return {"kind": trial.suggest_categorical("kind", KINDS)}

def initial_points(workload):
    return [{"kind": kind} for kind in KINDS]

def train(config, report, resume):
    import beside
    print("this is", config["kind"])
    rank = torch.distributed.get_rank()
    if config["kind"] == "silent" or config["kind"] == "half" and rank:
        return
    report(epoch=1, value=0.5)
    if config["kind"] == "nan":
        report(epoch=2, value=float("nan"))
    elif config["kind"] == "raises":
        beside.divide(1, 0)
    elif config["kind"] == "back":
        report(epoch=1, value=0.5)
    elif config["kind"] == "late":
        report(epoch=2, value=0.75, recall=0.25)
        report(epoch=3, value=1.0)
    elif config["kind"] == "one":
        if rank:
            raise ValueError("of rank 1")
        report(epoch=2, value=0.5)
'''


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_each_end_of_a_function_is_told_as_what_it_is(tmp_path):
    (tmp_path / "own.py").write_text(ENDS)
    (tmp_path / "beside.py").write_text("def divide(a, b):\n    return a / b\n")
    own = ("--trainable", "own.py", "--space", "own.py", "--objective", "accuracy:max")
    rest = ("--trials", 8, "--max-epochs", 3, "--stopping", "none", "--workers", 2, "--study", "s")
    search = Search(*own, *rest, cwd=tmp_path)
    assert search.end() == 0, search.stderr()
    trials = {t.params["kind"]: t for t in load(tmp_path / "runs" / "s").trials}
    ends = {kind: (t.state.name, str(t.user_attrs["ended_because"])) for kind, t in trials.items()}
    assert ends["late"] == ("COMPLETE", "ran to its end") and trials["late"].value == 1.0
    assert ends["returns"] == ("COMPLETE", "returned after epoch 1") and trials["returns"].value == 0.5
    assert ends["nan"][0] == "FAIL" and trials["nan"].user_attrs[DIVERGED_ATTR]
    for kind, said in (
        ("raises", f'File "{tmp_path}/beside.py", line 2, in divide'),
        ("raises", "ZeroDivisionError: division by zero"),
        ("silent", "of 2. Call report(epoch=…, value=…) after each epoch, on each rank"),
        ("one", "ValueError: of rank 1"),
        ("half", "returned without a report on rank 1 of 2"),
        ("back", "epochs are reported one by one, from 1 to config['epochs'], 3; got 1 after 1. "),
    ):
        assert ends[kind][0] == "FAIL" and said in ends[kind][1], ends[kind]
        assert trials[kind].user_attrs[FAILURE_ATTR] == "own code" and "train_loop/" not in ends[kind][1]
    rows = pq.read_table(tmp_path / "runs" / "s" / "epochs.parquet").to_pylist()
    found = [row for row in rows if row["trial"] == trials["late"].number]
    assert [dict(row["metrics"]) for row in found] == [
        {"accuracy": 0.5}, {"accuracy": 0.75, "recall": 0.25}, {"accuracy": 1.0},
    ]  # fmt: skip
    assert all(row["train_loss"] is None and row["train_s"] >= 0 for row in found)
    log = (tmp_path / "runs" / "s" / "logs" / f"trial-{trials['late'].number:04d}.log").read_text()
    assert "this is late" in log


SLOW = CURVES.replace("        report(epoch=epoch", "        __import__('time').sleep(0.5)\n        report(epoch=epoch")
"""Each epoch takes half a second, so that there is one in which a process can be killed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", ["ray::SynchronizationActor", pytest.param("ray::RayTrainWorker", marks=pytest.mark.exhaustive)]
)
def test_a_function_whose_peers_are_killed_goes_on_from_its_checkpoint(tmp_path, victim):
    (tmp_path / "own.py").write_text(SLOW)
    own = ("--trainable", "own.py:train", "--space", "own.py", "--objective", "value:max", "--stopping", "none")
    search = Search(*own, "--trials", 1, "--max-epochs", EPOCHS, "--confirm", "none", "--study", "s", cwd=tmp_path)
    search.wait_for("epoch 3/")
    below = psutil.Process(search.process.pid).children(recursive=True)
    (found,) = (process for process in below if victim in " ".join(process.cmdline()))
    found.kill()
    assert search.end() == 0, search.stderr()
    (trial,) = load(tmp_path / "runs" / "s").trials
    assert (trial.state, FAILURE_ATTR in trial.user_attrs) == (TrialState.COMPLETE, False), trial.user_attrs
    records = epoch_records(trial)
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    assert records[-1]["resumed_from_epoch"] in range(3, EPOCHS) and shown(trial)[-1] == pytest.approx(
        trial.params["lr"]
    )
