"""What a job does at its end, and why Slurm signals it."""

import pytest

from bigbatch.cluster.job import policy
from bigbatch.cluster.job.policy import Action, Cause, Situation, decide


def situation(cause: Cause, **known) -> Situation:
    return Situation(**{"cause": cause, "exit_code": 143, "fruitless": 1, "max_restarts": 3, **known})


@pytest.mark.parametrize(
    ("case", "action", "code"),
    [
        (situation(Cause.DRIVER_ENDED, exit_code=0), Action.END, 0),
        (situation(Cause.DRIVER_ENDED, exit_code=7), Action.END, 7),
        (situation(Cause.DRIVER_ENDED, exit_code=75), Action.REQUEUE, 143),
        (situation(Cause.CANCELLED), Action.END, 143),
        (situation(Cause.CANCELLED, exit_code=None), Action.END, 143),
        (situation(Cause.TIME_LIMIT), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, chain=True), Action.CHAIN, 143),
        (situation(Cause.TIME_LIMIT, exit_code=None), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, exit_code=0), Action.END, 0),
        (situation(Cause.TIME_LIMIT, fruitless=3), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, fruitless=4), Action.END, 1),
        (situation(Cause.TIME_LIMIT, max_restarts=0), Action.END, 1),
        (situation(Cause.PREEMPTED), Action.REQUEUE, 143),
        (situation(Cause.REQUEUED, fruitless=9), Action.LEAVE_TO_SLURM, 143),
        (situation(Cause.REQUEUED, exit_code=0, chain=True), Action.LEAVE_TO_SLURM, 143),
        (situation(Cause.REQUEUED, exit_code=None), Action.LEAVE_TO_SLURM, 143),
        (situation(Cause.HEAD_DIED, exit_code=None), Action.REQUEUE, 143),
        (situation(Cause.HEAD_DIED, exit_code=None, fruitless=2), Action.END, 1),
        (situation(Cause.START_FAILED, exit_code=None), Action.END, 1),
        (situation(Cause.START_FAILED, exit_code=None, progress=True), Action.REQUEUE, 143),
        (situation(Cause.START_FAILED, exit_code=None, progress=True, chain=True), Action.CHAIN, 143),
        (situation(Cause.START_FAILED, exit_code=None, progress=True, fruitless=4), Action.END, 1),
        (situation(Cause.UNEXPLAINED), Action.END, 143),
        (situation(Cause.UNEXPLAINED, exit_code=0), Action.END, 0),
    ],
)
def test_what_a_job_does_at_its_end(case, action, code):
    decision = decide(case)
    assert (decision.action, decision.exit_code) == (action, code) and decision.reason


def test_a_search_that_can_start_nothing_more_is_not_said_to_be_near_the_time_limit():
    """It ends so with hours left, too, where the nodes that are left hold no trial."""
    assert "time limit" not in decide(situation(Cause.DRIVER_ENDED, exit_code=policy.TRY_AGAIN)).reason
    assert "time limit" in decide(situation(Cause.TIME_LIMIT)).reason


def test_a_driver_that_was_killed_is_said_to_have_been_and_by_what():
    assert "killed" in (said := decide(situation(Cause.DRIVER_ENDED, exit_code=137)).reason) and "--mem" in said


@pytest.mark.parametrize(
    ("state", "preempted", "requeued", "cause"),
    [
        ("CANCELLED", False, False, Cause.CANCELLED),
        ("CANCELLED,COMPLETING", False, True, Cause.CANCELLED),
        ("RUNNING", True, False, Cause.PREEMPTED),
        ("RUNNING", False, False, Cause.PREEMPTED),
        ("PENDING,COMPLETING", True, True, Cause.REQUEUED),
        ("REQUEUED,COMPLETING", False, False, Cause.REQUEUED),
        ("PREEMPTED,COMPLETING", True, False, Cause.PREEMPTED),
        ("TIMEOUT", False, False, Cause.TIME_LIMIT),
        ("COMPLETING", False, False, Cause.CANCELLED),
        ("COMPLETING", True, False, Cause.PREEMPTED),
        ("COMPLETING", False, True, Cause.REQUEUED),
        ("COMPLETING", True, True, Cause.REQUEUED),
    ],
)
def test_why_slurm_sends_sigterm(state, preempted, requeued, cause):
    assert policy.cause_of_signal(state, preempted, requeued) is cause
