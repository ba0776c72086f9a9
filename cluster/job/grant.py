"""Notice what Slurm changes about a running job: an administrator moves its end, and Slurm takes dead nodes away.

The job's record says what holds now. The driver reads there until when it may start trials, and which nodes are billed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from bigbatch.cluster.host import slurm_commands, slurm_values, waits
from bigbatch.cluster.job.drain import TimeLeft
from bigbatch.cluster.job.early_signal import EarlySignal
from bigbatch.cluster.job.watch import FIRST_ANSWER_S, Question
from bigbatch.cluster.record.job_record import JobRecord

ASK_S = float(os.environ.get("BIGBATCH_ASK_SLURM_S") or waits.GRANT_S)


class Grant:
    """What Slurm grants a job. Call ``look`` often; it never waits.

    Args:
        record: the job's record, which is kept up to date.
        left: the time that is left, which is kept up to date.
        early: the early signal of the last start.
        say: writes a line to the job's log.
        save: writes the record.
    """

    def __init__(
        self,
        record: JobRecord,
        left: TimeLeft,
        early: EarlySignal | None = None,
        say: Callable[[str], None] = print,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self._record, self._left, self._early, self._say, self._save = record, left, early, say, save
        self._question: Question | None = None
        self._next = time.monotonic() + ASK_S
        record.deadline = left.deadline(early) or None

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
        self._take_in(Question(self._record.job_id).answer(FIRST_ANSWER_S) or {})
        return self._is_due()

    def _is_due(self) -> bool:
        deadline = self._left.deadline()
        return bool(deadline) and time.time() >= deadline

    def _take_in(self, fields: Mapping[str, str]) -> None:
        preempted = slurm_values.seconds_since_epoch(fields.get("PreemptTime")) is not None
        if fields.get("JobState") != "RUNNING" or preempted:  # the end of a preempted job is that of its grace time
            return
        changed = self._take_end(fields)
        if self._take_nodes(fields) or changed:
            self._save()

    def _take_end(self, fields: Mapping[str, str]) -> bool:
        ends = slurm_values.seconds_since_epoch(fields.get("EndTime"))
        if "TimeLimit" not in fields or (ends is None and fields["TimeLimit"] != "UNLIMITED"):
            return False
        before = self._left.end_time
        if ends == before or (ends is not None and before is not None and abs(ends - before) < 1):
            return False
        self._left.end_time = self._record.end_time = ends
        self._record.deadline = self._left.deadline(self._early) or None
        left = "it has no end" if ends is None else f"{ends - time.time():.0f} s are left"
        self._say(f"Slurm has changed the job's time limit to {fields['TimeLimit']}: {left}")
        return True

    def _take_nodes(self, fields: Mapping[str, str]) -> bool:
        count = slurm_values.read_count(fields.get("NumNodes"))
        if "HetJobId" in fields or count in (None, len(self._record.nodes)):
            return False  # this is said of the first component alone
        try:
            self._record.nodes = slurm_commands.hostnames(fields["NodeList"])
        except (KeyError, slurm_commands.SlurmError):
            return False
        self._say(f"Slurm has changed the job's nodes to {', '.join(self._record.nodes)}")
        return True
