"""Notice on another node that the job's first node is gone, and with it the batch script.

With ``--no-kill`` Slurm keeps such a job RUNNING to its limit, with nothing left that could end it.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from bigbatch.base import waits
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.node.node_status import HEARTBEAT_S, HUNG_S, Heartbeats, NodeStatus

ALIVE = ("starting", "ready")
# In proportion to HUNG_S, which BIGBATCH_HUNG_S shortens in tests.
LOST_S = HUNG_S * waits.HOST_LOST_S / waits.HUNG_S
TURN_S = LOST_S / 9
"""The nodes act one after the other: the first that lives ends all others."""
LOOK_S = HEARTBEAT_S / 2
ASK_AGAIN_S = LOST_S / 3
ANSWER_S = 3.0
"""How long to wait for an answer of the first node."""


class BatchHost:
    """The job's first node as this node sees it.

    Args:
        job_id: the job that owns both nodes.
        host, report: the first node's name, and the file with its reports; the others' reports lie beside it.
        own: the file with this node's reports.
    """

    def __init__(self, job_id: str, host: str, report: Path, own: Path) -> None:
        self._job_id, self._host, self._report, self._own = job_id, host, report, own
        self._heartbeats = Heartbeats()
        self._next_look = 0.0
        self._next_question = time.monotonic() + LOST_S

    def is_lost(self) -> bool:
        """Whether the first node has no power or no network any more. Call it often.

        Its heartbeat has stopped while this node's can be read on the shared file system; and its address does not
        answer, or Slurm has taken it out of the job.
        """
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        theirs, ours = NodeStatus.read(self._report), NodeStatus.read(self._own)
        if theirs is None and now >= self._next_question:  # lost before its first report: Slurm alone may know
            self._next_question = now + ASK_AGAIN_S
            return self._is_out_of_the_job()
        if theirs is None or ours is None or theirs.run_id != ours.run_id or theirs.state not in ALIVE:
            return False
        beats = {self._host: theirs.beat, self._own.stem: ours.beat}
        if self._host not in self._heartbeats.hung(beats, LOST_S) or now < self._next_question:
            return False
        if self._host not in self._heartbeats.hung(beats, LOST_S + self._turn(ours.run_id) * TURN_S):
            return False
        self._next_question = now + ASK_AGAIN_S
        return not answers(theirs) or self._is_out_of_the_job()

    def answers(self) -> bool:
        """Whether its machine answers, or need not: it has ended in order, or never said where it listens."""
        status = NodeStatus.read(self._report)
        return status is None or status.state not in ALIVE or answers(status)

    def _turn(self, run_id: str) -> int:
        """How many nodes are to act before this one."""
        others = [path for path in self._own.parent.glob("*.json") if path < self._own and path != self._report]
        statuses = [NodeStatus.read(path) for path in others]
        return sum(status is not None and status.run_id == run_id for status in statuses)

    def _is_out_of_the_job(self) -> bool:
        """Whether Slurm says so. A node that hangs may still answer."""
        try:
            nodes = slurm_commands.job_fields(self._job_id).get("NodeList", "")
            return bool(nodes) and self._host not in slurm_commands.hostnames(nodes)
        except slurm_commands.SlurmError:
            return False


def answers(node: NodeStatus) -> bool:
    """Whether the node's machine answers at Ray's port, be it with a refusal."""
    if node.ports is None:
        return True
    try:
        with socket.create_connection((node.ip, node.ports.node_manager), ANSWER_S):
            return True
    except ConnectionError:  # refused: Ray has ended, and the machine lives
        return True
    except OSError:
        return False
