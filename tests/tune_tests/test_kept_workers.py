"""Processes that train one trial after the other: which of them do, and that a trial shows nothing of those before."""

import gc
import threading
import weakref
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.host.ranks import SHARED_BY
from bigbatch.train_loop.launch import inline_controller, ray_worker
from bigbatch.train_loop.launch.trial_task import TrialTask, WorkersEnd
from bigbatch.tune.runs.run import FAILURE_ATTR
from helpers.searches import Search, load

NET = """
import os, pathlib, signal, time
from optuna.pruners import BasePruner
from torch import nn

HERE = pathlib.Path(__file__).parent

def space(trial, workload):
    trial.suggest_float("unused", 0.0, 1.0)
    return workload.config({"lr": 0.1, "batch": 256, "model.options.trial": trial.number})

class Net(nn.Sequential):
    def __init__(self, trial, classes):
        super().__init__(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                         nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, classes))
        self.trial, self.batches, self.validations, self.was_training = trial, 0, 0, True

    def forward(self, images):
        self.batches += 1
        in_trial = "RANK" in os.environ
        if in_trial and self.trial == 2 and self.batches > 3:
            raise ValueError("trial 2 fails")
        if in_trial and self.trial == 3 and self.batches > 3 and os.environ["RANK"] == "1":
            flag = HERE / "killed"
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        self.validations += self.was_training and not self.training
        self.was_training = self.training
        if in_trial and self.trial == 6 and os.environ["RANK"] == "1" and self.training and self.validations == 2:
            until = time.monotonic() + 60
            while not (HERE / "stopped").exists():
                assert time.monotonic() < until, "the stop did not come"
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().forward(images) * (float("nan") if in_trial and self.trial == 4 and self.batches > 3 else 1.0)

class StopsThree(BasePruner):
    def prune(self, study, trial):
        if trial.number == 6 and len(trial.intermediate_values) == 2:
            (HERE / "stopped").touch()
        return trial.number in (1, 5, 6)

def net(workload, trial=-1):
    if "RANK" in os.environ:
        with (HERE / "pids").open("a") as file:
            file.write(f"{trial} {os.environ['RANK']} {os.getpid()}\\n")
    return Net(trial, workload.num_classes)
"""


@pytest.mark.slow
def test_two_ranks_train_trial_after_trial_and_only_a_failure_or_a_kill_takes_its_processes_along(
    tmp_path: Path,
) -> None:
    (tmp_path / "my.py").write_text(NET)
    words = "--trials 8 --max-epochs 3 --confirm none --study s --workers 2 --stopping my.py:StopsThree".split()
    search = Search("--space", "my.py", "--model", "my.py:net", *words, cwd=tmp_path)
    assert search.end() == 0, search.stderr()
    pids: dict[int, list[set[int]]] = defaultdict(list)
    for line in (tmp_path / "pids").read_text().splitlines():
        trial, _, pid = map(int, line.split())
        if not pids[trial] or len(pids[trial][-1]) == 2:
            pids[trial].append(set())
        pids[trial][-1].add(pid)
    groups = [pids[number] for number in range(8)]
    assert [len(group) for group in groups] == [1, 1, 1, 2, 1, 1, 1, 1], pids
    assert all(len(group) == 2 for tried in groups for group in tried) and not groups[3][0] & groups[3][1], (
        "the kill ended both ranks"
    )
    new = [number for number in range(1, 8) if groups[number - 1][-1] != groups[number][0]]
    assert {3, 7} <= set(new) and len(new) <= 3, (pids, "a stalled machine may replace one more: they took ANSWER_S")
    assert not any(map(psutil.pid_exists, {pid for groups in pids.values() for group in groups for pid in group}))

    trials = load(tmp_path / "runs" / "s").trials
    good, stop, fail = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    assert [t.state for t in trials] == [good, stop, fail, good, fail, stop, stop, good], (
        "trial 3 goes on after its kill, and a frozen rank of a stopped trial holds up no other trial"
    )
    why = trials[2].user_attrs["ended_because"]
    assert trials[2].user_attrs[FAILURE_ATTR] == "own code" and "train_loop/" not in why, "the user's frames alone"
    assert f'File "{tmp_path}/my.py", line 22, in forward' in why and "ValueError: trial 2 fails" in why
    assert "".join(search.lines).count("line 22, in forward") == 1
    (said,) = [line for line in search.lines if "starts its workers again" in line]
    assert "trial 3 starts its workers again, from its last checkpoint if it has one: worker 1: " in said, (
        "and not of trial 2"
    )
    values = {tuple(t.intermediate_values.items()) for t in trials if t.state == good}
    assert len(values) == 1, "the same configuration and seed, in new processes and in used ones"


def test_ranks_that_cannot_join_each_other_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes them for started then. They would keep the place of the next ones until their handles are collected."""
    from ray.train.v2._internal.execution.worker_group import worker_group

    class CannotJoin(worker_group.WorkerGroup):
        def _start_impl(self, worker_group_state_builder: object) -> None:
            self._worker_group_state = object()
            raise RuntimeError("no such interface")

    ended = list[object]()
    monkeypatch.setattr(worker_group.WorkerGroupStateBuilder, "shutdown", lambda builder: ended.append(builder))
    made: Any = type("Group", (inline_controller._KeepsWorkers, CannotJoin), {})
    group = made.__new__(made)
    group._worker_group_context = SimpleNamespace(num_workers=2, resources_per_worker={"CPU": 1.0})
    group._worker_group_state = None
    with pytest.raises(RuntimeError, match="no such interface"):
        group._start()
    assert len(ended) == 1


def test_trials_of_a_process_train_in_one_thread_which_keeps_nothing_of_them() -> None:
    """cuDNN's measurements belong to a thread, and Ray calls from a new one for each trial."""

    class Weights:
        pass

    left: list[weakref.ref[Weights]] = []

    def fails() -> None:
        weights = Weights()
        left.append(weakref.ref(weights))
        raise SystemExit(3)

    found = list[int]()
    for _ in range(2):
        caller = threading.Thread(target=lambda: found.append(ray_worker.in_training_thread(threading.get_ident)))
        caller.start()
        caller.join()
    assert found[0] == found[1] != threading.get_ident()
    with pytest.raises(SystemExit):
        ray_worker.in_training_thread(fails)
    gc.collect()
    assert [one() for one in left] == [None]
    assert ray_worker.in_training_thread(threading.get_ident) == found[0], "after an error, too"


def test_what_failed_or_ran_code_of_a_users_own_serves_no_other_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_worker.may_serve_again(WorkersEnd()) and ray_worker.may_serve_again(WorkersEnd(stopped=True))
    assert ray_worker.may_serve_again(WorkersEnd("NonFiniteLossError: nan", FailureKind.DIVERGED))
    assert not ray_worker.may_serve_again(WorkersEnd("OwnCodeError: it", FailureKind.CONFIGURATION))
    assert not ray_worker.may_serve_again(None), "a function that says nothing"
    for name, value in (("_trials", 0), ("_first_bytes", 0)):
        monkeypatch.setattr(ray_worker, name, value)
    monkeypatch.setattr(ray_worker, "_leftovers", False)
    assert ray_worker.drop_trial() and ray_worker.between_trials()
    monkeypatch.setattr(ray_worker, "_leftovers", True)
    assert not ray_worker.drop_trial() and not ray_worker.between_trials()


def test_a_process_that_grows_or_has_trained_many_trials_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = 2 << 30
    monkeypatch.setattr("bigbatch.train_loop.loop.worker_use.resident_bytes", lambda: resident)
    for name, value in (("_trials", 0), ("_first_bytes", 0), ("_leftovers", False)):
        monkeypatch.setattr(ray_worker, name, value)
    assert [ray_worker.between_trials() for _ in range(3)] == [True] * 3
    resident += (1 << 30) + 1
    assert not ray_worker.between_trials()
    resident = 2 << 30
    monkeypatch.setattr(ray_worker, "_trials", ray_worker.MOST_TRIALS - 2)
    assert [ray_worker.between_trials() for _ in range(2)] == [True, False]


def test_a_rank_frees_its_own_gpu_and_is_replaced_if_that_keeps_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has not chosen its GPU would use the first one, which is another rank's."""
    monkeypatch.setattr("ray.train.get_context", lambda: SimpleNamespace(get_world_rank=lambda: 1))
    monkeypatch.setattr("ray.train.torch.get_device", lambda: torch.device("cuda", 3))
    called, kept, threads = list[object](), 0, set[int]()

    def calls(what: object) -> None:
        called.append(what)
        threads.add(threading.get_ident())

    monkeypatch.setattr(torch.cuda, "set_device", calls)
    monkeypatch.setattr(ray_worker, "_share_gpu", lambda gpus: calls("share"))
    for name in ("use_assigned_cores", "_let_children_end", "_stay_near"):
        monkeypatch.setattr(ray_worker, name, lambda *_: None)
    (tmp_path / ".stop").touch()
    task = TrialTask(
        name="t", config=TrainConfig(), workers=2, worker_resources={"GPU": 1.0}, restarts=0, ray_storage=tmp_path,
        checkpoint_dir=tmp_path, checkpoint_every_s=1.0, log_file=tmp_path / "s" / "logs" / "t.log",
        stop_file=tmp_path / ".stop",
    )  # fmt: skip
    for name, value in (("_trials", 0), ("_first_bytes", 0), ("_leftovers", False)):
        monkeypatch.setattr(ray_worker, name, value)
    assert ray_worker.train_worker(task.to_dict()).stopped

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda: calls("garbage"))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: calls("workspaces"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls("cache"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: kept)
    assert ray_worker.between_trials() and len(threads) == 1
    assert called == [torch.device("cuda", 3), "share", "garbage", "workspaces", "cache"]
    kept = ray_worker.GROWTH_BYTES
    assert ray_worker.between_trials()
    monkeypatch.setenv(SHARED_BY, "4")
    assert not ray_worker.between_trials()
