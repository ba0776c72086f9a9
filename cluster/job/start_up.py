"""Wait until the nodes of a job are in its cluster. ``bigbatch.cluster.job.watch`` notices what ends the wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bigbatch.cluster.job.driver import GcsWatch
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import POLL_S, JobWatch
from bigbatch.cluster.node.node_status import NodeStatus


class StartUp:
    """The start of a job's nodes.

    Args:
        timeout_s: for the head, and again for all others (``--start-timeout``). Nodes try to start Ray again meanwhile.
        say: writes a line to the job's log.
    """

    def __init__(self, nodes: NodeSteps, watch: JobWatch, timeout_s: float, say: Callable[[str], None]) -> None:
        self._nodes, self._watch, self._timeout_s, self._say = nodes, watch, timeout_s, say
        self._told: set[str] = set()

    def await_head(self, head: str) -> NodeStatus | None:
        """The report of the head when its Ray is ready; None if the job must end (the watch's ``cause``)."""
        deadline = time.monotonic() + self._timeout_s
        while not self._watch.interruption():
            status = self._nodes.status(head)
            if status is not None and status.state == "ready" and status.ports is not None:
                return status
            self._tell({head: status})
            if time.monotonic() > deadline:
                why = f": {status.reason}" if status is not None and status.reason else ""
                self._watch.exclude(head, "was not ready in time")
                self._watch.stop_because(
                    Cause.START_FAILED, f"the head {head} is not ready in time (--start-timeout){why}"
                )
            time.sleep(POLL_S)
        return None

    def await_registered(self, gcs: GcsWatch, job_id: str, head: str) -> bool:
        """Wait until Ray has all nodes of the job; after the time-out go on without those that are not ready.

        Returns False if the job must end (the watch's ``cause``).
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._watch.interruption():
            statuses = {name: self._nodes.status(name) for name in self._nodes.living()}
            reported = [status for status in statuses.values() if status is not None]
            expected = (len(statuses), sum(s.cpus for s in reported), sum(s.gpus for s in reported))
            absent = [name for name, status in statuses.items() if status is None or status.state != "ready"]
            if not absent and gcs.sum(job_id) == expected:
                self._say("registered: {} nodes, {} CPUs, {} GPUs".format(*expected))
                return True
            self._tell(statuses)
            if time.monotonic() > deadline:
                if absent and head not in absent:
                    self._give_up(absent)
                    return True
                self._watch.stop_because(Cause.START_FAILED, "the nodes did not register in time (--start-timeout)")
            time.sleep(POLL_S)
        return False

    def _give_up(self, absent: list[str]) -> None:
        for name in absent:
            self._watch.exclude(name, "did not register in time")
            self._nodes.kill(name)
        self._say(f"going on without {', '.join(absent)}, which did not register in time")

    def _tell(self, statuses: Mapping[str, NodeStatus | None]) -> None:
        """Say once why a node starts Ray again."""
        for status in statuses.values():
            if status is not None and status.reason and status.state == "starting" and status.reason not in self._told:
                self._told.add(status.reason)
                self._say(f"{status.reason}; trying again")
