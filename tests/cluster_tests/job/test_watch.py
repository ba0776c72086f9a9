"""Signals, Slurm's word on them, and how long a driver may save itself then."""

import signal
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from bigbatch.cluster.job import watch
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import Cause
from bigbatch.cluster.job.watch import Question, TimeLeft
from bigbatch.cluster.node.node_status import NodeStatus
from bigbatch.cluster.record import job_record
from helpers.stand_in_slurm import stand_in
from helpers.waiting import SetClock


@pytest.mark.parametrize(
    ("answer", "cause", "killed_soon"),
    [
        ("echo JobState=RUNNING PreemptTime=2026-11-21T10:00:00", Cause.PREEMPTED, False),
        ("echo JobState=CANCELLED PreemptTime=None", Cause.CANCELLED, True),
        ("echo JobState=COMPLETING Restarts=2 PreemptTime=None", Cause.CANCELLED, True),
        ("echo JobState=COMPLETING Restarts=3 PreemptTime=None", Cause.REQUEUED, True),
        ("echo 'Invalid job id specified' >&2; exit 1", Cause.CANCELLED, True),
    ],
)
def test_a_signal_is_explained_whenever_slurm_answers(answer, cause, killed_soon, tmp_path, monkeypatch):
    awake = tmp_path / "awake"
    down = "echo 'Unable to contact slurm controller' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, scontrol=f"[ -e {awake} ] || {{ {down}; }}\n{answer}")
    monkeypatch.setattr(watch, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(watch, "ASK_AGAIN_S", 0.05)
    said: list[str] = []
    job = job_record.JobRecord("7", "driver")
    nodes = Mock(spec=NodeSteps)
    look = watch.JobWatch(job, nodes, "n1", TimeLeft(None, 120.0, 30.0), 2, [signal.SIGTERM], [], said.append)
    assert look.interruption() is Cause.UNEXPLAINED and "saving in any case" in said[-1]
    assert nodes.mock_calls == [call.hold()], "else the nodes end before Slurm answers, and the trials on them"
    assert not look.explain(0.2) and look.cause is Cause.UNEXPLAINED
    awake.touch()
    assert look.explain(60) and (look.cause, look.killed_soon) == (cause, killed_soon)
    assert not look.explain(), "nothing is left to explain"


OTHER_ERRORS = (
    *("Protocol authentication error", "Could not establish a configuration source", "Message receive failure"),
    *("Slurm backup controller in standby mode", "Unspecified error"),
)


def test_only_an_unknown_job_is_taken_for_a_cancelled_one(tmp_path, monkeypatch):
    """Whatever else scontrol fails with says nothing of the job: it is asked on."""
    (tmp_path / "left").write_text("".join(f"scontrol: error: {words}\n" for words in OTHER_ERRORS))
    fail = f"[ -s {tmp_path}/left ] && {{ head -n1 {tmp_path}/left >&2; sed -i 1d {tmp_path}/left; exit 1; }}"
    stand_in(tmp_path, monkeypatch, scontrol=f"{fail}\necho JobState=RUNNING PreemptTime=2026-11-21T10:00:00")
    monkeypatch.setattr(watch, "ASK_AGAIN_S", 0.01)
    fields = Question("7").answer(60)
    assert fields is not None and fields["JobState"] == "RUNNING"
    assert (tmp_path / "left").read_text() == "", "every error was met"


def test_ray_is_told_of_a_node_whose_step_has_ended_before_it_notices(monkeypatch):
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(watch, "forget_in_ray", lambda *words: told.append(words))
    nodes = Mock(spec=NodeSteps, **{
        "look.return_value": {"n2": "lost", "n3": "n3 does not see /runs"}, "hung.return_value": [],
        "signalled.return_value": [], "living.return_value": ["n1"],
        "status.side_effect": {"n2": NodeStatus("7.0", ip="10.0.0.2"), "n3": None}.get,
    })  # fmt: skip
    job = job_record.JobRecord("7", "driver")
    look = watch.JobWatch(job, nodes, "n1", TimeLeft(None, 120.0, 30.0), 0, [], [], lambda line: None)
    look.env = {"RAY_ADDRESS": "10.0.0.1:20000"}
    assert look.interruption() is None
    assert told == [("10.0.0.2", "lost", look.env)]


class Clock(SetClock):
    """In place of the module ``time``: a sleep moves it on and lasts no time."""

    monotonic = time = SetClock.__call__

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class LateWord:
    """Slurm's word on a signal: ``answer`` from the moment ``at_s`` on, unexplained until then."""

    cause = Cause.UNEXPLAINED

    def __init__(self, clock: Clock, at_s: float, answer: Cause, killed_soon: bool) -> None:
        self._clock, self._at_s, self._answer, self.killed_soon = clock, at_s, answer, killed_soon

    def explain(self) -> bool:
        if self.cause is not Cause.UNEXPLAINED or self._clock.now < self._at_s:
            return False
        self.cause = self._answer
        return True


@pytest.mark.parametrize(
    ("answers_after_s", "answer", "killed_soon", "ends_after_s"),
    [
        *((after_s, Cause.PREEMPTED, True, 8.0) for after_s in (0.5, 4.0, 7.0, 1e9)),
        (4.0, Cause.TIME_LIMIT, False, 4.0 + 60.0),  # the whole time, from the answer on
    ],
)
def test_a_late_answer_does_not_give_the_driver_time_that_slurm_does_not_give(
    answers_after_s, answer, killed_soon, ends_after_s, monkeypatch
):
    """Slurm kills 12 s after its signal: four seconds before, the driver is ended, whenever Slurm explains itself."""
    clock = Clock(1000.0)
    monkeypatch.setattr(watch, "time", clock)
    killed: list[float] = []
    goes_on_saving = {"exit_code": lambda: None, "terminate": lambda: None, "kill": lambda: killed.append(clock.now)}
    word = LateWord(clock, clock.now + answers_after_s, answer, killed_soon)
    nodes, said = SimpleNamespace(hold=lambda: None), list[str]()
    left = TimeLeft(None, 120.0, 12.0)
    parts: tuple[Any, ...] = (SimpleNamespace(**goes_on_saving), word, nodes, [], left, said.append)
    assert watch.end_driver(*parts) is None and said == ["driver killed"]
    assert ends_after_s <= killed[0] - 1000.0 < ends_after_s + 3 * watch.POLL_S
