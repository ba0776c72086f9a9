"""Nodes as Ray's GCS knows them, and their draining, with a real Ray of two nodes on this machine's loopback."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bigbatch.cluster.job.driver import forget_in_ray
from bigbatch.cluster.node import ray_commands
from helpers.paths import ROOT
from helpers.waiting import wait_until

pytestmark = pytest.mark.exhaustive

HEAD, WORKER = "127.0.0.1", "127.0.0.2"


class TwoNodes:
    """A head and a worker as ``bigbatch.cluster.node`` starts them, in folders with a blank in their names."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        head, worker = ray_commands.free_ports(head=True), ray_commands.free_ports(head=False)
        assert head is not None and worker is not None
        self.address = f"{HEAD}:{head.gcs}"
        self.env = ray_commands.ray_environment(self.address, ray_commands.make_token(folder))
        self.env["PYTHONPATH"] = f"{ROOT}/src:{ROOT}/tests"
        self.pids = {}
        share = ray_commands.NodeResources(1, 0, 500 * 2**20, ray_commands.LEAST_OBJECT_STORE)
        for ip, chosen in ((HEAD, head), (WORKER, worker)):
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="b ")))
            command = ray_commands.ray_start_command(ip, self.address, chosen, share, local / "r", ip)
            log = stack.enter_context((local / "log").open("w"))
            started = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)
            stack.callback(end, started)
            log_file = local / "log"
            wait_until(functools.partial(has_started, log_file), log_file.read_text)
            self.pids[ip] = started.pid

    def freeze(self, ip: str) -> None:
        """Stop all processes of a node: it answers nobody, and no connection to it is closed."""
        for process in (psutil.Process(self.pids[ip]), *psutil.Process(self.pids[ip]).children(recursive=True)):
            process.suspend()

    def seen(self) -> str:
        """The first line of ``bigbatch.cluster.node.gcs watch``."""
        command = [sys.executable, "-m", "bigbatch.cluster.node.gcs", "watch"]
        with subprocess.Popen(command, cwd=ROOT / "src", env=self.env, stdout=subprocess.PIPE, text=True) as watch:
            try:
                return watch.stdout.readline()
            finally:
                watch.kill()

    def worker(self) -> str:
        """Ray's id of the worker."""
        return self.run(f"print(*(n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == {WORKER!r}))").strip()

    def run(self, code: str) -> str:
        """What a driver that has joined the cluster prints."""
        join = f"import ray; ray.init({self.address!r}, log_to_driver=False, configure_logging=False)\n"
        command = [sys.executable, "-c", join + textwrap.dedent(code)]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout


def has_started(log: Path) -> bool:
    return "Ray runtime started" in log.read_text()


def end(started: subprocess.Popen) -> None:
    below = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
    for process in below:
        process.kill()
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    with ExitStack() as stack:
        yield TwoNodes(tmp_path, stack)


def test_what_ran_on_a_node_that_is_gone_fails_at_once(two_nodes):
    """A frozen node, as one without power: Ray alone finds that after more than a minute (5 questions of 13 s)."""
    worker = two_nodes.worker()
    with subprocess.Popen(
        [sys.executable, "-u", "-c", WORKS_ON.format(node=worker, address=two_nodes.address)],
        env=two_nodes.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as driver:  # fmt: skip
        assert "works\n" in driver.stdout  # Ray prints lines of its own, too
        two_nodes.freeze(WORKER)
        forget_in_ray(WORKER, "its step ended", two_nodes.env)
        said = next(line for line in driver.stdout if line.startswith("failed"))
        assert said.startswith("failed ActorDiedError") and "its step ended" in said, said
    assert two_nodes.seen() == "1 1 0\n"


WORKS_ON = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init({address!r}, log_to_driver=False, configure_logging=False)
@ray.remote(num_cpus=0.5, scheduling_strategy=NodeAffinitySchedulingStrategy({node!r}, soft=False))
class Work:
    def go_on(self, seconds):
        import threading; threading.Event().wait(seconds)
work = Work.remote()
ray.get(work.go_on.remote(0))
print("works")
try:
    ray.get(work.go_on.remote(600))
except ray.exceptions.RayError as error:
    death = next(node["DeathReasonMessage"] for node in ray.nodes() if node["NodeID"] == {node!r})
    print("failed", type(error).__name__, death)
"""
