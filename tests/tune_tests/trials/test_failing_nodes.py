"""A node that fails each trial is told from configurations that fail on each node."""

import random
from collections.abc import Collection

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.runs.retry import trials_to_retry
from bigbatch.tune.trials.bridge import OptunaBridge
from helpers.bridges import EPOCHS, BrokenSpace, Recorder, make_bridge, number_of, record

LOST_GPU = "RuntimeError: CUDA error: GPU has fallen off the bus"
KINDS = (FailureKind.PROCESS, FailureKind.OWN_CODE)


class Cluster:
    """Nodes with a slot each, which train a trial by an epoch a step, and what a bridge tells of them."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.given_up = nodes, set[str]()
        self.busy: dict[str, tuple[str, int, int]] = {}  # node → Tune's name of the trial, its number, its epochs
        self.begun: list[tuple[int, str]] = []

    count = property(lambda self: len(self.nodes))

    def can_avoid(self, nodes: Collection[str]) -> bool:
        return bool(set(self.nodes) - set(nodes))

    def give_up(self, node: str) -> None:
        self.given_up.add(node)

    def train(self, bridge: OptunaBridge, fails, kind=FailureKind.OWN_CODE, steps: int = 10_000) -> "Cluster":
        """Until the search is over. ``fails``: why a trial with these parameters fails at once on a node, or ""."""
        waiting: list[dict] = []
        names = map(str, range(10**6))
        live: dict[int, str] = {}
        for _ in range(steps):
            while len(live) < len(self.nodes) and isinstance(task := bridge.suggest(name := next(names)), dict):
                waiting.append(task)
                live[number_of(task)] = name
            if not live:
                assert task == Searcher.FINISHED
                return self
            for node in self.nodes:
                task = next((one for one in waiting if node not in one["avoided"]), None)
                if node not in self.busy and task is not None:
                    waiting.remove(task)
                    number = number_of(task)
                    self.busy[node] = live[number], number, 0
                    self.begun.append((number, node))
            for node, (name, number, done) in list(self.busy.items()):
                at = {"nodes": [{"node_id": node, "host": f"host-{node}"}]}
                if not done and (why := fails(node, bridge._study.trials[number].params)):
                    over = bridge.observe(name, {"records": [], "failure": why, "failure_kind": kind, **at})
                else:
                    self.busy[node] = name, number, done + 1
                    over = bridge.observe(name, {"records": [record(done + 1, 0.5)], **at})
                if over or done + 1 == EPOCHS:
                    del self.busy[node], live[number]
        raise AssertionError("it never ends")


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_node_is_given_up_and_what_it_failed_is_repeated_elsewhere(store, kind) -> None:
    """It fails its trials in no time, while the other node trains one. So without more it would take nearly all."""
    heard, cluster = Recorder(), Cluster("x", "y")
    bridge = make_bridge(store, trials=8, observers=[heard], cluster=cluster)
    cluster.train(bridge, lambda node, params: LOST_GPU if node == "x" else "", kind)
    trials = store.study.trials
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(complete) == 8 and not trials_to_retry(trials), "each failed one has a retry, which counts in its place"
    assert cluster.given_up == {"x"} and not bridge.fatal
    (line,) = [line for line in heard.said if "is given up" in line]
    assert line.startswith("node host-x is given up") and LOST_GPU in line and "\n" not in line
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert len(failed) == 2, "the third one of the row was repeated at once"
    assert all(trial.user_attrs["ended_because"].startswith(f"on node host-x: {LOST_GPU}") for trial in failed)
    last = max(place for place, (_, node) in enumerate(cluster.begun) if node == "x")
    assert not {node for _, node in cluster.begun[last + 1 :]} - {"y"}


@pytest.mark.parametrize("seed", range(3))
def test_at_random_only_broken_nodes_are_given_up(store, seed) -> None:
    """Configurations that nobody can train fail in a row on one node too, while the others are busy."""
    rng = random.Random(seed)
    nodes = [f"n{n}" for n in range(4)]
    broken, limit = set(rng.sample(nodes, seed % 3)), rng.choice((0.3, 0.6))
    cluster, space = Cluster(*nodes), BrokenSpace("never given", good_after=0)  # it has a parameter x
    bridge = make_bridge(
        store, trials=30, concurrency=len(nodes), strategy="random", seed=seed, cluster=cluster, space=space
    )

    def fails(node: str, params: dict[str, float]) -> str:
        return LOST_GPU if node in broken else "ValueError: no such shape" if params["x"] < limit else ""

    cluster.train(bridge, fails, KINDS[seed % 2])
    assert cluster.given_up == broken


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (FailureKind.DEVICE_MEMORY, "DeviceMemoryError: too large"),
        (FailureKind.DIVERGED, "NonFiniteLossError: nan"),
    ],
)
def test_what_the_configuration_decides_makes_no_node_suspect(store, kind, why) -> None:
    cluster = Cluster("x", "y")
    bridge = make_bridge(store, trials=20, cluster=cluster)
    bridge.suggest("good")
    bridge.observe("good", {"records": [record(1, 0.5)], "nodes": [{"node_id": "y", "host": "y"}]})
    for name in "abcdef":
        task = bridge.suggest(name)
        assert isinstance(task, dict) and task["avoided"] == ()
        at = {"nodes": [{"node_id": "x", "host": "x"}]}
        bridge.observe(name, {"records": [], "failure": why, "failure_kind": kind, **at})
    assert [trial.state for trial in store.study.trials[1:]] == [TrialState.FAIL] * 6


@pytest.mark.parametrize("nodes", [("x",), ("x", "y"), ("x", "y", "z")])
def test_where_no_trial_trains_the_search_ends_and_no_node_is_given_up(store, nodes) -> None:
    """The user's code is wrong, on each node."""
    cluster = Cluster(*nodes)
    bridge = make_bridge(store, trials=50, concurrency=len(nodes), cluster=cluster)
    cluster.train(bridge, lambda node, params: LOST_GPU)
    assert "the first 4 trials all failed for the same reason" in str(bridge.fatal) and not cluster.given_up
    assert len(store.study.trials) <= 4 + len(nodes), "then none begins"
    because = store.study.trials[0].user_attrs["ended_because"]
    assert because.startswith("on node host-") == (len(nodes) > 1)
