"""What a stranger on a node gets from a job's ports."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import port_probe
from ray_job import WAIT, RayJob, python
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WRONG_TOKEN = "f" * 64
HARMLESS = {"/", "/api/version", "/api/gcs_healthz", "/grpc.health.v1.Health/Check"}


def probe(cluster: VirtualCluster, node: str, address: str, port: int, user: str, *words: object) -> dict[str, list]:
    """What the user's requests from ``node`` get from a port; the words are those of ``port_probe.py``."""
    script = Path(port_probe.__file__)
    return json.loads(cluster.run(node, sys.executable, script, address, port, *words, user=user).stdout)


def requests_of(user: str, cluster: VirtualCluster, methods: dict[str, bytes]) -> Path:
    """A file for ``port_probe.py`` that the user can read."""
    path = cluster.folder(user, "probe") / "methods"
    path.write_text(json.dumps({method: body.hex() for method, body in methods.items()}))
    path.chmod(0o644)
    return path


def summary(answers: dict[str, list], which: int) -> str:
    """``12 × UNAUTHENTICATED; /: 200 446 bytes``: equal refusals are counted."""
    refusals = Counter(a[which] for a in answers.values() if not a[which].startswith(("200", "OK")))
    given = [f"{name}: {a[which]}" for name, a in answers.items() if a[which].startswith(("200", "OK"))]
    return "; ".join([*(f"{count} × {status}" for status, count in refusals.items()), *given]) or "no answer"


WORK = """
    @ray.remote
    def hold(): time.sleep(600)
    held = [hold.remote() for _ in range(2)]
    other = next(n["NodeID"] for n in ray.nodes() if n["NodeID"] != ray.get_runtime_context().get_node_id())
    mine = ray.put(b"x" * 10**6)
    print("OBJECT", other, mine.hex(), flush=True)
"""


class Probed:
    """A job of two nodes, and how each of its listening ports answers."""

    def __init__(self, cluster: VirtualCluster, *options: str) -> None:
        self.cluster = cluster
        sbatch, command = ("-N2", "-c1", "--gres=gpu:1"), python(WORK, WAIT)
        self.job = RayJob(cluster, "alice", sbatch, (*options, *command))
        self.job.wait_log("WAITING")
        time.sleep(3)  # until the agents, which start last, listen as well
        ids = [bytes.fromhex(word) for word in self.job.wait_log(r"OBJECT (\w+) (\w+)").groups()]
        package = Path(importlib.util.find_spec("ray").origin).parent
        methods = port_probe.everything(package, *ids)
        assert len(methods) > 100
        self.everything = requests_of("bob", cluster, methods)
        self.harmless = requests_of("alice", cluster, port_probe.harmless(*ids))
        self.nodes = self.job.record["nodes"]
        facts = {n: json.loads((self.job.files / "nodes" / f"{n}.json").read_text()) for n in self.nodes}
        self.names = {(node, port): name for node in facts for name, port in facts[node]["ports"].items()}
        assert len(set(self.names.values())) >= 7

    def rows(self) -> list[tuple]:
        """Node, name, address of each port; what a stranger gets without and with a wrong token, and its owner."""
        ours = {(node, pid) for node in self.nodes for pid, _ in self.cluster.processes(node, "alice")}
        found = [(node, listener) for node in self.nodes for listener in self.cluster.listening(node)]
        with ThreadPoolExecutor(4) as pool:
            rows = list(pool.map(self._ask, [(node, x) for node, x in found if (node, x.pid) in ours]))
        for node, name, address, stranger, owner in rows:
            role = "head" if node == self.job.record["head"] else "worker"
            answers = (summary(stranger, 0), summary(stranger, 1), summary(owner, 0))
            print(f"| {role}: {name} | {address} | {' | '.join(answers)} |")
        return rows

    def _ask(self, place: tuple) -> tuple:
        node, listener = place
        where = "127.0.0.1" if listener.address.endswith("127.0.0.1") else self.cluster.plan.address(node)
        to = (self.cluster, node, where, listener.port)
        stranger = probe(*to, "bob", self.everything, "none", WRONG_TOKEN)
        owner = probe(*to, "alice", self.harmless, f"@{self.job.files / 'token'}")
        return node, self.names.get((node, listener.port), listener.command), listener.address, stranger, owner

    def lives(self) -> bool:
        return "is gone" not in self.job.log and self.cluster.state(self.job.id) == "RUNNING"


def served(rows: list[tuple]) -> list[tuple]:
    """What a stranger was given."""
    return [
        (node, name, request, answer)
        for node, name, _, stranger, _ in rows
        for request, answers in stranger.items()
        for answer in answers
        if answer.startswith(("200", "OK")) and request not in HARMLESS
    ]


@pytest.mark.exhaustive
def test_a_stranger_gets_nothing_from_any_port(cluster):
    """Every port is asked all that Ray's binaries name; what is printed is the table of docs/security.md."""
    probed = Probed(cluster)
    rows = probed.rows()
    assert served(rows) == []
    managers = [(stranger, owner) for _, name, _, stranger, owner in rows if name == "object_manager"]
    assert len(managers) == 2
    for stranger, owner in managers:
        for transfer in (port_probe.PULL, port_probe.PUSH):
            assert stranger[transfer] == ["UNAUTHENTICATED"] * 2 and owner[transfer][0].startswith("OK")
    assert probed.lives()
    # What docs/security.md says of Ray 2.60: one call ends a raylet. Where this fails, Ray has mended it.
    worker = next(node for node in probed.nodes if node != probed.job.record["head"])
    port = next(port for (node, port), name in probed.names.items() if (node, name) == (worker, "node_manager"))
    call = requests_of("bob", cluster, {port_probe.START_SYNC: b""})
    probe(cluster, worker, cluster.plan.address(worker), port, "bob", call, port_probe.BARE)
    probed.job.wait_log(f"node {worker} is gone: Ray ended on {worker}")
