"""Decide what a job does at its end, from what happened. This file uses no clock, file or Slurm command."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

TRY_AGAIN = 75
"""EX_TEMPFAIL: the search cannot start more trials in this allocation. Its end is near (BIGBATCH_DEADLINE), or no trial
fits on the remaining nodes. The search has printed which."""
KILLED = 137
"""128 + SIGKILL, as shells say it."""
NOTHING_MORE = "the search can start nothing more in this allocation"
HEAD_RESTARTS = 1
"""A head that dies this often in a row, with nothing finished or saved in between, will die again."""


class Cause(enum.Enum):
    """Why the driver must end."""

    DRIVER_ENDED = "the driver ended"
    TIME_LIMIT = "the time limit is near"
    PREEMPTED = "the job is preempted"
    REQUEUED = "Slurm has put the job back into the queue"
    CANCELLED = "the job is cancelled"
    UNEXPLAINED = "Slurm has signalled the job and does not say why"
    HEAD_DIED = "the head node's Ray died"
    START_FAILED = "the cluster did not start"
    BAD_INPUT = "the driver refuses its arguments"


class Action(enum.Enum):
    """What the job does at its end."""

    END = "end"
    REQUEUE = "requeue"
    CHAIN = "submit a successor"
    LEAVE_TO_SLURM = "leave the requeueing to Slurm"


@dataclass(frozen=True)
class Situation:
    """The facts that are known after the cluster has been drained.

    Attributes:
        exit_code: the driver's exit code; None if it had to be killed or never ran.
        progress: there is work that another start would continue; used if the cluster did not start.
        fruitless: restarts in a row, with this run, in which nothing was finished or saved.
    """

    cause: Cause
    exit_code: int | None
    fruitless: int
    max_restarts: int
    chain: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Decision:
    action: Action
    exit_code: int
    reason: str


def decide(situation: Situation) -> Decision:
    """Decide the job's exit code, and whether it starts again."""
    reason = situation.cause.value
    if situation.cause is Cause.DRIVER_ENDED and situation.exit_code == TRY_AGAIN:
        situation, reason = dataclasses.replace(situation, cause=Cause.TIME_LIMIT), NOTHING_MORE
    if situation.cause in (Cause.DRIVER_ENDED, Cause.BAD_INPUT):
        code = 1 if situation.exit_code is None else situation.exit_code
        why = ": it was killed, most often because the job's memory (--mem) was full" if code == KILLED else ""
        return Decision(Action.END, code, f"{reason} with exit code {code}{why}")
    if situation.cause is Cause.CANCELLED:
        # 128 + SIGTERM, as shells say it.
        return Decision(Action.END, 143, reason)
    if situation.cause is Cause.REQUEUED:  # whatever the driver has done, Slurm starts the job again
        finished = ", though the driver had finished" if situation.exit_code == 0 else ""
        return Decision(Action.LEAVE_TO_SLURM, 143, reason + finished)
    if situation.exit_code == 0:
        return Decision(Action.END, 0, f"{reason}, and the driver had finished")
    if situation.cause is Cause.START_FAILED and not situation.progress:
        return Decision(Action.END, 1, reason)
    if situation.cause is Cause.UNEXPLAINED:  # it may be a scancel; and a silent controller cannot requeue
        return Decision(Action.END, 143, reason)
    of_head = situation.cause is Cause.HEAD_DIED
    most = min(HEAD_RESTARTS, situation.max_restarts) if of_head else situation.max_restarts
    # A job that fails again and again without an epoch or a checkpoint would use up the grant.
    if situation.fruitless > most:
        times = f"{situation.fruitless} times in a row" if situation.fruitless > 1 else "this time"
        return Decision(
            Action.END,
            1,
            f"{reason}, and no epoch or checkpoint came of it {times} (--max-restarts {situation.max_restarts})",
        )
    return Decision(Action.CHAIN if situation.chain else Action.REQUEUE, 143, reason)


def cause_of_signal(state: str, preempted: bool, requeued: bool) -> Cause:
    """Why SIGTERM came, according to Slurm's state of the job.

    Args:
        state: JobState of ``scontrol show job``; it may have several parts, as in ``PENDING,COMPLETING``.
        preempted: whether PreemptTime is set.
        requeued: whether Slurm has counted another restart of the job since this start.
    """
    states = set(state.replace("+", ",").split(","))
    if states & {"CANCELLED", "FAILED", "DEADLINE"}:
        return Cause.CANCELLED
    # Some versions of Slurm call a job that ends COMPLETING, whether it is cancelled, requeued or preempted.
    if requeued or states & {"PENDING", "REQUEUED", "REQUEUE_FED", "NODE_FAIL"}:
        return Cause.REQUEUED
    if "TIMEOUT" in states:
        return Cause.TIME_LIMIT
    if "COMPLETING" in states and not preempted and "PREEMPTED" not in states:
        return Cause.CANCELLED
    # Preempted; or still running: a preemption's grace time, or someone's `scancel --batch -s TERM`.
    return Cause.PREEMPTED
