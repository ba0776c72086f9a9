"""Notice what Slurm changes about a running job: an administrator moves its end, and Slurm takes dead nodes away.

The job's record says what holds now. The driver reads there until when it may start trials, and which nodes are billed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from bigbatch.base import waits
from bigbatch.base.waits import (
    CANCELLED_SAVE_S,
    GIVE_UP_REST_S,
    KILLED_REST_S,
    LIMIT_REST_S,
    MARGIN_REST_S,
    SAVE_S,
    SILENT_S,
)
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.record.job_record import JobRecord

ASK_S = float(os.environ.get("BIGBATCH_ASK_SLURM_S") or waits.GRANT_S)
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
                else:  # another error says nothing about the job
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

    def deadline(self) -> float:
        """When trials must save, seconds since the epoch; 0 without a limit."""
        return self.end_time - self._margin_s if self.end_time else 0.0

    def environment(self) -> dict[str, str]:
        """Variables that tell the driver how much time it has."""
        words = {"BIGBATCH_SAVE_S": f"{self.save_s:.0f}"}
        deadline = self.deadline()
        return words | ({"BIGBATCH_DEADLINE": f"{deadline:.0f}"} if deadline else {})

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


class Grant:
    """What Slurm grants a job. Call ``look`` often; it never waits.

    Args:
        record: the job's record, which is kept up to date.
        left: the time that is left, which is kept up to date.
        say: writes a line to the job's log.
        save: writes the record.
    """

    def __init__(
        self,
        record: JobRecord,
        left: TimeLeft,
        say: Callable[[str], None] = print,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self._record, self._left, self._say, self._save = record, left, say, save
        self._question: Question | None = None
        self._next = time.monotonic() + ASK_S
        record.deadline = left.deadline() or None

    def look(self) -> None:
        """Ask Slurm when that is due, and take in what it has answered."""
        if self._question is None and time.monotonic() >= self._next:
            self._question = Question(self._record.job_id)
        fields = self._question.answer(0) if self._question is not None else None
        if fields is not None:
            self._question, self._next = None, time.monotonic() + ASK_S
            self._take_in(fields)

    def is_near_its_end(self) -> bool:
        """Whether trials must save now. Slurm is asked before that is said."""
        if not self._is_due():
            return False
        # An administrator may have extended the job since the last look: trials would save, and the job end, too early.
        self._take_in(Question(self._record.job_id).answer(FIRST_ANSWER_S) or {})
        return self._is_due()

    def _is_due(self) -> bool:
        deadline = self._left.deadline()
        return bool(deadline) and time.time() >= deadline

    def _take_in(self, fields: Mapping[str, str]) -> None:
        preempted = slurm_commands.seconds_since_epoch(fields.get("PreemptTime")) is not None
        if fields.get("JobState") != "RUNNING" or preempted:  # the end of a preempted job is that of its grace time
            return
        changed = self._take_end(fields)
        if self._take_nodes(fields) or changed:
            self._save()

    def _take_end(self, fields: Mapping[str, str]) -> bool:
        ends = slurm_commands.seconds_since_epoch(fields.get("EndTime"))
        # An answer without these fields must not take the job's end away.
        if "TimeLimit" not in fields or (ends is None and fields["TimeLimit"] != "UNLIMITED"):
            return False
        before = self._left.end_time
        if ends == before or (ends is not None and before is not None and abs(ends - before) < 1):
            return False
        self._left.end_time = self._record.end_time = ends
        self._record.deadline = self._left.deadline() or None
        left = "it has no end" if ends is None else f"{ends - time.time():.0f} s are left"
        self._say(f"Slurm has changed the job's time limit to {fields['TimeLimit']}: {left}")
        return True

    def _take_nodes(self, fields: Mapping[str, str]) -> bool:
        count = slurm_commands.read_count(fields.get("NumNodes"))
        if count in (None, len(self._record.nodes)):
            return False
        try:
            self._record.nodes = slurm_commands.hostnames(fields["NodeList"])
        except (KeyError, slurm_commands.SlurmError):
            return False
        self._say(f"Slurm has changed the job's nodes to {', '.join(self._record.nodes)}")
        return True
