"""A job's waits: until its nodes are in its cluster, while the driver runs, and while the driver saves its trials.

``JobWatch`` notices the events that end a wait: signals, the time limit, nodes that die or hang.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from bigbatch.base import waits
from bigbatch.base.waits import (
    CANCELLED_SAVE_S,
    CRASH_OR_SIGNAL_S,
    GIVE_UP_REST_S,
    KILLED_REST_S,
    LIMIT_REST_S,
    MARGIN_REST_S,
    SAVE_S,
    SILENT_S,
)
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.job.driver import Driver, GcsWatch, drain_in_ray, forget_in_ray
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause, cause_of_signal
from bigbatch.cluster.node.node_status import NodeStatus
from bigbatch.cluster.record.job_record import JobRecord

WARNINGS = {signal.SIGUSR1, signal.SIGUSR2}
"""Signals that ``--signal`` may send before the time limit. Without a handler, each ends the process that gets it."""
POLL_S = 0.1
NODES_POLL_S = 0.5
"""Time between two looks at the nodes' files on the shared file system."""


FIRST_ANSWER_S = float(os.environ.get("BIGBATCH_FIRST_ANSWER_S") or waits.FIRST_ANSWER_S)
ASK_AGAIN_S = 1.0


class Question:
    """Asks Slurm about the job, in the background until it answers: a busy controller may take long."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._answer: dict[str, str] | None = None
        self._answered = threading.Event()
        # daemon: the job must be able to end although Slurm never answers.
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while self._answer is None:
            try:
                self._answer = slurm_commands.job_fields(self._job_id)
            except slurm_commands.SlurmError as error:
                # The controller forgets only jobs that have ended.
                if slurm_commands.UNKNOWN_JOB in str(error):
                    self._answer = {"JobState": "CANCELLED"}
                else:  # another error does not tell the job's state
                    time.sleep(ASK_AGAIN_S)
        self._answered.set()

    def answer(self, timeout_s: float) -> dict[str, str] | None:
        """The fields of ``scontrol show job``; None if they do not come in time."""
        return self._answer if self._answered.wait(timeout_s) else None


class TimeLeft:
    """The time that is left of an allocation.

    Args:
        end_time: when Slurm ends the job, seconds since the epoch; None: no limit.
        margin_s: trials begin to save this many seconds before the end.
        kill_wait_s: seconds from Slurm's SIGTERM to its SIGKILL.
    """

    def __init__(self, end_time: float | None, margin_s: float, kill_wait_s: float) -> None:
        self.end_time, self._margin_s, self._kill_wait_s = end_time, margin_s, kill_wait_s

    @property
    def deadline(self) -> float:
        """When trials must save, seconds since the epoch; infinity without a limit."""
        return self.end_time - self._margin_s if self.end_time else math.inf

    def environment(self) -> dict[str, str]:
        """Variables that tell the driver how much time it has."""
        words = {"BIGBATCH_SAVE_S": f"{self.save_s:.0f}"}
        return words | ({"BIGBATCH_DEADLINE": f"{self.deadline:.0f}"} if self.end_time else {})

    def patience_s(self) -> float:
        """Seconds to wait for a silent controller."""
        left = self.end_time - time.time() - GIVE_UP_REST_S if self.end_time else SILENT_S
        # Shortly before the limit the job must still write its record and requeue, answer or not.
        return max(0.0, min(SILENT_S, left))

    @property
    def save_s(self) -> float:
        """Seconds for the driver near the time limit. A longer ``--margin`` gives trials with long steps more time."""
        return max(SAVE_S, self._margin_s - MARGIN_REST_S)

    def to_save_s(self, cause: Cause | None, killed_soon: bool) -> float:
        """Seconds for the driver; fewer if Slurm's SIGKILL is near."""
        if cause is Cause.CANCELLED:
            return CANCELLED_SAVE_S
        if killed_soon or cause is Cause.UNEXPLAINED:
            # A site's KillWait may be as short as the part that is kept back for the nodes.
            return max(2.0, self._kill_wait_s - KILLED_REST_S)
        left = self.end_time - time.time() - LIMIT_REST_S if self.end_time else SAVE_S
        return max(2.0, min(self.save_s, left))


class JobWatch:
    """Finds the reason why the job must stop waiting: ``cause``. Call ``interruption`` often.

    Args:
        record: the job's record.
        head: the head's name.
        left: knows when trials must save.
        restart_count: how often Slurm had started the job again before this start.
        chores: other tasks to do regularly; an error in one of them ends the wait.
        say: writes a line to the job's log.
    """

    def __init__(
        self,
        record: JobRecord,
        nodes: NodeSteps,
        head: str,
        left: TimeLeft,
        restart_count: int,
        signals: list[int],
        chores: Sequence[Callable[[], None]],
        say: Callable[[str], None],
    ) -> None:
        self._record, self._nodes, self._head, self._left = record, nodes, head, left
        self._restart_count = restart_count
        self._signals, self._chores, self._say = signals, chores, say
        self._next_look = 0.0
        self._question: Question | None = None
        self.cause: Cause | None = None
        self.killed_soon = False
        """Whether Slurm has ended the job: then SIGKILL follows SIGTERM after KillWait."""
        self.env: Mapping[str, str] | None = None
        """Environment of processes that talk to Ray; None before Ray runs."""

    def interruption(self) -> Cause | None:
        """Check signals, time and nodes. Returns the cause; None while there is none."""
        if self.cause is None:
            self._take_notice()
        return self.cause

    def stop_because(self, cause: Cause, text: str) -> None:
        """Set the cause and write it to the job's log."""
        self.cause = cause
        self._say(text)

    def classify(self, what: str, *, only_if_certain: bool = False) -> None:
        """Ask Slurm why it signals: cancelled, preempted, out of time.

        If Slurm does not answer soon, the cause is UNEXPLAINED until ``explain`` finds it.
        """
        if self._question is None or self._question.answer(0) is not None:  # an old answer may be out of date
            self._question = Question(self._record.job_id)
        fields = self._question.answer(FIRST_ANSWER_S)
        if fields is not None:
            self._judge(what, fields, only_if_certain)
        elif not only_if_certain:
            self.stop_because(Cause.UNEXPLAINED, f"{what}; {Cause.UNEXPLAINED.value} yet; saving in any case")

    def explain(self, timeout_s: float = 0.0) -> bool:
        """Replace the cause UNEXPLAINED if Slurm answers within ``timeout_s``. Returns whether the cause is known."""
        if self.cause is not Cause.UNEXPLAINED or self._question is None:
            return False
        fields = self._question.answer(timeout_s)
        if fields is not None:
            self._judge("SIGTERM", fields)
        return fields is not None

    def _judge(self, what: str, fields: Mapping[str, str], only_if_certain: bool = False) -> None:
        preempted = slurm_commands.seconds_since_epoch(fields.get("PreemptTime")) is not None
        state = fields.get("JobState", "CANCELLED")
        if only_if_certain and not preempted and state == "RUNNING":
            return
        requeued = (slurm_commands.read_count(fields.get("Restarts")) or 0) > self._restart_count
        cause = cause_of_signal(state, preempted, requeued)
        self.killed_soon = state != "RUNNING"
        self.stop_because(cause, f"{what}; Slurm says {state}: {cause.value}")

    def _take_notice(self) -> None:
        if signal.SIGTERM in self._signals or signal.SIGINT in self._signals:
            self._nodes.hold()  # before Slurm is asked: it may take longer to answer than a node waits
            self.classify("SIGTERM")
        elif came := WARNINGS.intersection(self._signals):
            self.stop_because(Cause.TIME_LIMIT, f"{signal.Signals(min(came)).name}: the time limit is near")
        elif time.time() >= self._left.deadline:
            self.stop_because(Cause.TIME_LIMIT, "the time limit is near (--margin)")
        elif time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + NODES_POLL_S
            self._look_at_nodes()
            for chore in self._chores:
                chore()

    def _look_at_nodes(self) -> None:
        for name, reason in self._nodes.look().items():
            if name == self._head:
                self._head_died(reason)
                return
            self._say(f"node {name} is gone: {reason}; continuing with {len(self._nodes.living())}")
            status = self._nodes.status(name)
            if self.env and status is not None and status.ip:  # trials there go on elsewhere at once
                forget_in_ray(status.ip, reason, self.env)
        self._give_up_hung_nodes()
        signalled = self._nodes.signalled()
        if signalled and not self._signals:
            # The cluster ends with the head's step. If Slurm ends nothing, it was `scancel --signal=TERM`: trials save.
            head = self._head in signalled
            if head:
                self._nodes.hold()
            self.classify("SIGTERM to the steps", only_if_certain=not head)

    def _give_up_hung_nodes(self) -> None:
        for name in self._nodes.hung():
            self._say(f"node {name} hangs: no heartbeat; Ray places nothing there any more")
            status = self._nodes.status(name)
            if self.env and status is not None:
                drain_in_ray(status.ip, "no heartbeat", self.env)
            self._nodes.kill(name)

    def _head_died(self, reason: str) -> None:
        # Steps get Slurm's SIGTERM before the batch script does. So wait: a cancelled job looks like a crash at first.
        deadline = time.monotonic() + CRASH_OR_SIGNAL_S
        while time.monotonic() < deadline and not self._signals:
            time.sleep(POLL_S)
        # Without a signal only a certain answer of Slurm counts: if the job still runs, its head has crashed.
        self.classify("the head's step ended", only_if_certain=not self._signals)
        if self.cause is None:
            failed = Cause.HEAD_DIED if self._record.address else Cause.START_FAILED
            self.stop_because(failed, f"head {self._head} is gone: {reason}")


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
                self._watch.stop_because(
                    Cause.START_FAILED, f"the head {head} is not ready in time (--start-timeout){why}"
                )
            time.sleep(POLL_S)
        return None

    def await_registered(self, gcs: GcsWatch, head: str) -> bool:
        """Wait until Ray has all nodes of the job; after the time-out go on without those that are not ready.

        Returns False if the job must end (the watch's ``cause``).
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._watch.interruption():
            statuses = {name: self._nodes.status(name) for name in self._nodes.living()}
            reported = [status for status in statuses.values() if status is not None]
            expected = (len(statuses), sum(s.cpus for s in reported), sum(s.gpus for s in reported))
            absent = [name for name, status in statuses.items() if status is None or status.state != "ready"]
            if not absent and gcs.seen == expected:
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
            self._nodes.kill(name)
        self._say(f"going on without {', '.join(absent)}, which did not register in time")

    def _tell(self, statuses: Mapping[str, NodeStatus | None]) -> None:
        """Say once why a node starts Ray again."""
        for status in statuses.values():
            if status is not None and status.reason and status.state == "starting" and status.reason not in self._told:
                self._told.add(status.reason)
                self._say(f"{status.reason}; trying again")


def end_driver(
    driver: Driver, watch: JobWatch, nodes: NodeSteps, signals: list[int], left: TimeLeft, say: Callable[[str], None]
) -> int | None:
    """Let the driver save, and end it. Returns its exit code; None if it was killed."""
    if watch.cause is Cause.HEAD_DIED:
        driver.kill()  # the head is gone: the driver would wait a minute for it
        return None
    code = driver.exit_code()
    if code is None:
        # Slurm sends its SIGTERM to the steps, too. Without ``hold``, nodes would end Ray while trials still save.
        nodes.hold()
        # From here on a SIGTERM has a new reason: a scancel, or the end of a grace time.
        signals.clear()
        driver.terminate()
        code = _await_end(driver, watch, signals, left)
        say("driver killed" if code is None else f"driver saved and ended with exit code {code}")
    driver.kill()
    return code


def _await_end(driver: Driver, watch: JobWatch, signals: list[int], left: TimeLeft) -> int | None:
    code = None
    ends = time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon)
    while code is None and time.monotonic() < ends:
        time.sleep(POLL_S)
        code = driver.exit_code()
        # A silent controller has answered. The cause is now known, and it gives another time to save.
        if watch.explain():
            later = time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon)
            ends = min(ends, later) if watch.killed_soon else later  # SIGKILL does not wait
        if watch.cause is not Cause.CANCELLED and signal.SIGTERM in signals:
            watch.classify("SIGTERM while saving")  # a scancel does not wait
            signals.clear()
            ends = min(ends, time.monotonic() + left.to_save_s(watch.cause, watch.killed_soon))
    return code
