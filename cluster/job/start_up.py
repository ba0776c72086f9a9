"""Wait until the nodes of a job are in its cluster. ``bigbatch.cluster.job.watch`` notices what ends the wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from bigbatch.cluster.job.driver import GcsWatch
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import POLL_S, JobWatch
from bigbatch.cluster.node.node_status import NodeStatus


def await_head(nodes: NodeSteps, watch: JobWatch, head: str, timeout_s: float) -> NodeStatus | None:
    """The report of the head when its Ray is ready; None if the job must end (``watch.cause``)."""
    deadline = time.monotonic() + timeout_s
    while not watch.interruption():
        status = nodes.status(head)
        if status is not None and status.state == "ready" and status.ports is not None:
            return status
        if time.monotonic() > deadline:
            watch.stop_because(Cause.START_FAILED, "the head is not ready in time (--start-timeout)")
        time.sleep(POLL_S)
    return None


def await_registered(
    nodes: NodeSteps,
    watch: JobWatch,
    gcs: GcsWatch,
    job_id: str,
    head: str,
    timeout_s: float,
    say: Callable[[str], None],
) -> bool:
    """Wait until Ray has all nodes of the job. After ``timeout_s`` the job goes on without those that are not ready.

    Returns False if the job must end (``watch.cause``).
    """
    deadline = time.monotonic() + timeout_s
    while not watch.interruption():
        statuses = {name: nodes.status(name) for name in nodes.living()}
        reported = [status for status in statuses.values() if status is not None]
        expected = (len(statuses), sum(s.cpus for s in reported), sum(s.gpus for s in reported))
        absent = [name for name, status in statuses.items() if status is None or status.state != "ready"]
        if not absent and gcs.sum(job_id) == expected:
            say("registered: {} nodes, {} CPUs, {} GPUs".format(*expected))
            return True
        if time.monotonic() > deadline:
            if absent and head not in absent:
                _give_up(absent, nodes, watch, say)
                return True
            watch.stop_because(Cause.START_FAILED, "the nodes did not register in time (--start-timeout)")
        time.sleep(POLL_S)
    return False


def _give_up(absent: list[str], nodes: NodeSteps, watch: JobWatch, say: Callable[[str], None]) -> None:
    for name in absent:
        watch.exclude(name, "did not register in time")
        nodes.kill(name)
    say(f"going on without {', '.join(absent)}, which did not register in time")
