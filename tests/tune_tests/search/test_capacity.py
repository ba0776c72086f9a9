"""Nodes that come and go or run short of memory: what may start follows them, up and down."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from optuna.trial import TrialState
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

from bigbatch.base.atomic_files import write_json
from bigbatch.tune.plan.fitting import absent_nodes
from bigbatch.tune.plan.machine import Machine, Node, Share, share_out
from bigbatch.tune.search import capacity
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.tuner import NODES_LOST, StopScheduler, memory_kills_fail_trials
from helpers.paths import ROOT
from helpers.processes import clean_environment
from helpers.searches import TINY, Search, load

GIB = 2**30


class Nodes:
    """A cluster whose nodes the test changes."""

    def __init__(self, *nodes: Node) -> None:
        self.now = dict(enumerate(nodes))

    def __call__(self) -> dict[str, Node]:
        return {str(name): node for name, node in self.now.items()}


@pytest.fixture(autouse=True)
def look_each_time(monkeypatch):
    monkeypatch.setattr(capacity, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(capacity, "WAIT_IN_JOB_S", 0.0)
    monkeypatch.setattr(capacity, "JOINED_GRACE_S", 0.0)


def start_all(limit: Capacity, live: list[float]) -> None:
    """Start trials of one device each until there is no room, as the bridge does."""
    while limit.room(live):
        live.append(1.0)


def test_a_trial_on_a_part_of_a_gpu_begins_once_that_part_is_free():
    """With ``auto`` the number rises while others still have whole GPUs. Ray would let it wait, and its hours count."""
    machine = Machine((Node(16, 2, 64 * GIB),))
    limit = Capacity(share_out(machine, 1, 100), 100, gpus=True, machine=machine)
    assert limit.room([1.0]) and not limit.room([1.0, 1.0])
    assert limit.share_gpus(2).concurrency == 4
    assert limit.room([1.0, 0.5]) and not limit.room([1.0, 0.5, 0.5]) and limit.room([0.5, 0.5, 0.5])
    limit.share_gpus(3)
    assert limit.room([1 / 3] * 5) and not limit.room([1 / 3] * 6) and not limit.room([0.5, 0.5, 1.0])


def test_more_trials_run_when_nodes_join_and_fewer_when_they_go():
    nodes = Nodes(Node(4, 2, 64 * GIB))
    said: list[str] = []
    live: list[float] = []
    share = share_out(Machine(tuple(nodes().values())), 1, 100)
    limit = Capacity(share, 100, gpus=True, nodes=nodes, say=said.append)
    start_all(limit, live)
    assert len(live) == 2 and not said, "what stays as it was is not said"
    nodes.now[1] = Node(64, 4, 256 * GIB)
    start_all(limit, live)
    assert len(live) == 6 and said[-1].endswith("6 trials at a time, each with 1 worker of 2 CPU + 1 GPU")
    del nodes.now[0]
    assert not limit.room(live[:4]) and limit.room(live[:3])
    assert limit.bundle == {"CPU": 16.0, "GPU": 1.0}, "what the node that is left has for a GPU"
    assert "a node with 4 GPUs and 64 CPU cores: 4 trials at a time" in said[-1]


def test_a_trial_that_fits_on_no_node_that_is_left_is_known_and_so_is_a_search():
    nodes = Nodes(Node(2, 0, 64 * GIB), Node(12, 0, 64 * GIB))
    said: list[str] = []
    limit = Capacity(Share(1, 2, {"CPU": 6.0}), 8, nodes=nodes, say=said.append)
    assert limit.holds({"CPU": 6.0}) and limit.lost() is None
    nodes.now[1] = Node(3, 0, 64 * GIB)
    assert not limit.holds({"CPU": 6.0}) and limit.holds({"CPU": 2.0}), "one worker on each"
    nodes.now = {0: Node(1, 0, 64 * GIB)}
    assert not limit.room([])
    assert "at most 1, the number of CPU cores; got 2" in str(limit.lost()) and "cores; got 2" in said[-1]
    nodes.now[1] = Node(1, 0, 64 * GIB)
    assert limit.lost() is None and limit.room([]), "a node has come back"


@pytest.mark.parametrize(("gpus", "each"), [(4, 4), (0, 8)])
def test_nodes_of_the_job_whose_ray_is_not_there_are_held_too(monkeypatch, gpus, each):
    """Slurm bills three nodes of eight cores; one never came up, and one is lost later."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    nodes = Nodes(*[Node(8, gpus, 64 * GIB)] * 2)
    absent = [1]
    share = share_out(Machine(tuple(nodes().values())), 1, 100)
    limit = Capacity(share, 100, gpus=gpus > 0, nodes=nodes, absent=lambda: absent[0])
    assert limit.devices(Machine()) == 3 * each
    del nodes.now[0]
    absent[0] = 2
    assert limit.devices(Machine()) == 3 * each
    nodes.now, absent[0] = {}, 3
    assert limit.devices(Machine()) == 3 * each, "billed also while no trial fits anywhere"


def test_absent_nodes_are_those_of_the_job_that_ray_does_not_have(monkeypatch, tmp_path):
    """As the job's record and Ray's labels have them."""
    write_json(tmp_path / "job.json", {"nodes": ["n1", "n2", "n3"]})
    env = {"SLURM_JOB_ID": "7", "BIGBATCH_JOB_FOLDER": str(tmp_path)}
    seen = [("n1", True), ("n2", False)]
    rays = [{"Alive": alive, "Labels": {"slurm_node": node}} for node, alive in seen]
    monkeypatch.setattr("ray.nodes", lambda: rays)
    assert absent_nodes(env) == 2 and absent_nodes({"SLURM_JOB_ID": "7"}) == 0
    rays[0]["Labels"] = {}
    assert absent_nodes({}) == 0, "outside of a job, on nodes without labels"
    assert absent_nodes(env) == 0, "a Ray without labels: nobody knows"


@contextlib.contextmanager
def cluster_of(*nodes: dict[str, Any], **more: str) -> Iterator[subprocess.Popen[str]]:
    """A real Ray of these nodes, whose first line is its address. ``more``: variables of theirs."""
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "ray_nodes.py"), *map(json.dumps, nodes)]
    env = {**clean_environment(), "RAY_AUTH_MODE": "disabled", **more}
    ray = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield ray
    finally:
        ray.stdin.close()
        ray.wait(120)


@pytest.mark.exhaustive
def test_a_search_goes_on_with_smaller_workers_when_a_node_is_lost_and_grows_when_one_joins(
    tiny_images, tiny_space, tmp_path
):
    """A real Ray of two nodes. Trials get six cores a worker of the larger one; the one that is left has one core."""
    large, small = {"num_cpus": 12, "memory": 30 * 10**9}, {"num_cpus": 1, "memory": 2_097_152_000}
    with cluster_of(small, large) as ray:
        arguments = ("--space", tiny_space, "--data", tiny_images, *TINY, "--study", "s", "--trials", 3)
        address = ray.stdout.readline().strip()
        search = Search(
            *arguments, "--max-epochs", 20, "--stopping", "none", "--address", address,
            cwd=tmp_path, RAY_AUTH_MODE="disabled",
        )  # fmt: skip
        search.wait_for(r"trial 1 epoch 2/20")
        print("remove", file=ray.stdin, flush=True)
        search.wait_for(
            r"nodes have changed: a node with 1 CPU core and 2\.1 GB: 1 trial at a time, each with 1 worker of 1 CPU"
        )
        search.wait_for(r"trial 0 done")
        print("add", json.dumps(small), file=ray.stdin, flush=True)
        search.wait_for(r"nodes have changed: 2 nodes with 1 CPU core and 2\.1 GB: 2 trials at a time")
        assert search.end() == 0, search.stderr()
        log = "".join(search.lines)
        assert log.count("its nodes are gone; it continues with workers that fit") == 2
        trials = load(tmp_path / "runs" / "s").trials
        assert [t.state for t in trials] == [TrialState.COMPLETE] * 3
        assert all(list(t.intermediate_values) == list(range(1, 21)) for t in trials)


LOOPS = """
import os, threading

def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0)}

def train(config, report, resume):
    done = int((resume / "epoch").read_text()) if resume else 0
    if "BROKEN" in os.environ:
        raise RuntimeError("CUDA error: GPU has fallen off the bus")
    for epoch in range(done + 1, config["epochs"] + 1):
        threading.Event().wait(2)
        (report.checkpoint_folder / "epoch").write_text(str(epoch))
        report(epoch=epoch, value=config["lr"] * epoch)
"""


@pytest.mark.exhaustive
def test_a_node_that_fails_each_trial_is_given_up_and_what_it_failed_is_trained_elsewhere(tmp_path):
    """A real Ray of two nodes, one of them broken."""
    (tmp_path / "loops.py").write_text(LOOPS)
    sound: dict[str, Any] = {"num_cpus": 1, "memory": 2 * 10**9}
    with cluster_of(sound, {**sound, "env_vars": {"BROKEN": "1"}}) as ray:
        address = ray.stdout.readline().strip()
        search = Search(
            "--space", "loops.py:space", "--trainable", "loops.py:train", "--objective", "value:max", "--trials", 6,
            "--max-epochs", 4, "--stopping", "none", "--study", "s", "--address", address,
            cwd=tmp_path, RAY_AUTH_MODE="disabled",
        )  # fmt: skip
        search.wait_for(r"node .* is given up: 3 trials in a row failed there: .*fallen off the bus")
        search.wait_for("nodes have changed: a node with 1 CPU core")
        assert search.end() == 0, search.stderr()
    log = "".join(search.lines)
    assert log.count("failed at –: on node ") == 2 and log.count("so it is repeated on another node") == 1
    states = [trial.state for trial in load(tmp_path / "runs" / "s").trials]
    assert (states.count(TrialState.COMPLETE), states.count(TrialState.FAIL), len(states)) == (6, 2, 8)


def test_a_node_that_is_given_up_holds_no_trial():
    nodes = Nodes(Node(4, 0, 64 * GIB), Node(8, 0, 64 * GIB))
    limit = Capacity(Share(1, 1, {"CPU": 4.0}), 8, nodes=nodes)
    broken = next(key for key, node in nodes().items() if node.cpus == 8)
    assert limit.count == 2 and limit.can_avoid([broken]) and not limit.can_avoid(list(nodes()))
    assert limit.holds({"CPU": 8.0}) and not limit.holds({"CPU": 8.0}, [broken])
    assert limit.bundle == {"CPU": 4.0}
    limit.give_up(broken)
    assert limit.count == 1 and limit.room([]) and not limit.room([1.0, 1.0])


class Bridge:
    """Notes which trials are put back into the study."""

    def __init__(self) -> None:
        self.put: list[tuple[str, str]] = []

    def put_back(self, trial_id: str, why: str) -> None:
        self.put.append((trial_id, why))


class Controller:
    """The part of Tune's controller that the scheduler uses. Its trials wait."""

    def __init__(self, cpus: dict[str, float]) -> None:
        self.trials = [
            SimpleNamespace(
                trial_id=name,
                config={"worker_resources": {"CPU": count}},  # no configuration: it must not be parsed for this
                is_finished=lambda: False,
                status="RUNNING",
                placement_group_factory=None,
            )
            for name, count in cpus.items()
        ]
        self._staged_trials = list[Any]()
        self.stopped: list[str] = []

    def get_trials(self) -> list[Any]:
        return self.trials

    get_live_trials = get_trials

    def stop_trial(self, trial: Any) -> None:
        self.stopped.append(trial.trial_id)


def given_up(capacity: Capacity) -> tuple[list[tuple[str, str]], list[str]]:
    bridge, controller = Bridge(), Controller({"small": 2.0, "large": 8.0})
    scheduler: Any = StopScheduler(bridge, capacity)  # type: ignore[arg-type]
    assert scheduler.choose_trial_to_run(controller) is None, "no trial is pending"
    return bridge.put, controller.stopped


def test_only_trials_that_no_longer_fit_are_given_up() -> None:
    capacity = Capacity(Share(1, 1, {"CPU": 8.0}), 8, nodes=lambda: {"n1": Node(4, 0, 2**34)})
    assert given_up(capacity) == ([("large", NODES_LOST)], ["large"])
    assert given_up(Capacity(Share(1, 1, {"CPU": 8.0}), 8)) == ([], []), "nodes that never change"


class Actor:
    """Stands for a trial's process, whose task Ray tracks."""

    class train:
        remote = staticmethod(object)


@pytest.mark.parametrize(
    ("error", "as_a_failure"), [(OutOfMemoryError("low"), True), (ActorDiedError(), True), (ValueError("other"), False)]
)
def test_tune_hears_of_an_ended_process_that_its_trial_has_failed(error, as_a_failure, monkeypatch):
    """By the way that a task's error takes in Ray: the future, the callback, the trial."""
    heard: list[Exception] = []
    actor = TrackedActor(1)
    task = TrackedActorTask(actor, on_error=lambda _, error: heard.append(error))
    manager: Any = RayActorManager(resource_manager=object())  # none is asked
    manager._cleanup_actor = lambda tracked_actor: None
    manager._live_actors_to_ray_actors_resources[actor] = Actor(), None

    def fails(future: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", fails)

    def resolve() -> None:
        _, future = manager._schedule_tracked_actor_task(task, "train", args=(), kwargs={}, _return_future=True)
        manager._actor_task_events.resolve_future(future)

    with memory_kills_fail_trials(), contextlib.nullcontext() if as_a_failure else pytest.raises(RuntimeError):
        resolve()
    assert [isinstance(met, RayActorError) for met in heard] == [True] * as_a_failure
    if isinstance(error, OutOfMemoryError):  # Ray's own again: not a change that a notebook's other searches meet
        with pytest.raises(RuntimeError):
            resolve()
