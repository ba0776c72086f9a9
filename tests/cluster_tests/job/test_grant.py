"""What Slurm changes about a running job, as ``scontrol`` says it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bigbatch.base import processes
from bigbatch.cluster.job import grant
from bigbatch.cluster.job.grant import TimeLeft
from bigbatch.cluster.record.job_record import JobRecord
from helpers.stand_in_slurm import stand_in

MARGIN_S = 120.0


class Slurm:
    """``scontrol``, whose answer the test changes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answer = folder / "answer"
        self.says("JobState=RUNNING")
        hosts = "case $* in *hostnames*) echo n1; echo n3; exit;; esac"
        stand_in(folder, monkeypatch, scontrol=f"{hosts}\ncat {self._answer}")
        monkeypatch.setattr(grant, "ASK_S", 0.0)

    def says(self, words: str) -> None:
        self._answer.write_text(f"JobId=7 {words}\n")

    def moves_the_end(self, seconds: float) -> float:
        ends = float(int(time.time() + seconds))
        words = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ends))
        self.says(f"JobState=RUNNING TimeLimit=01:00:00 EndTime={words} NumNodes=3 NodeList=n[1-3]")
        return ends


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)


def job(ends_in_s: float) -> tuple[JobRecord, TimeLeft, grant.Grant, list[str]]:
    said: list[str] = []
    ends = float(int(time.time() + ends_in_s))
    record, left = JobRecord("7", "driver", nodes=["n1", "n2", "n3"], end_time=ends), TimeLeft(ends, MARGIN_S, 30.0)
    return record, left, grant.Grant(record, left, said.append, lambda: said.append("saved")), said


def look_until(one: grant.Grant, condition: Callable[[], bool]) -> None:
    def holds() -> bool:
        one.look()
        return condition()

    assert processes.wait_until(holds, 120)


def test_an_extended_time_limit_is_noticed_and_the_driver_can_read_it(slurm: Slurm) -> None:
    record, left, one, said = job(1800.0)
    assert record.deadline == record.end_time - MARGIN_S
    ends = slurm.moves_the_end(7200.0)
    look_until(one, lambda: left.end_time == ends)
    assert "changed the job's time limit to 01:00:00" in said[0]
    assert (left.end_time, record.end_time, record.deadline) == (ends, ends, ends - MARGIN_S) and said[-1] == "saved"
    slurm.says("JobState=RUNNING TimeLimit=UNLIMITED EndTime=Unknown NumNodes=3")
    look_until(one, lambda: left.end_time is None)
    assert (left.deadline(), record.end_time, record.deadline) == (0.0, None, None)
    ends = slurm.moves_the_end(600.0)  # a shorter one counts as well
    look_until(one, lambda: left.end_time == ends)
    assert left.deadline() == ends - MARGIN_S


def test_slurm_is_asked_before_trials_save_for_a_limit(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    _, left, one, said = job(60.0)
    assert one.is_near_its_end() and said == [], "Slurm names no other limit"
    slurm.moves_the_end(7200.0)
    assert not one.is_near_its_end() and left.end_time is not None
    monkeypatch.setattr(grant, "FIRST_ANSWER_S", 0.0)
    assert job(60.0)[2].is_near_its_end(), "where it does not answer, trials save"


def test_the_end_of_a_grace_time_is_no_time_limit(slurm: Slurm) -> None:
    _, left, one, said = job(60.0)
    before = left.end_time
    slurm.says("JobState=RUNNING TimeLimit=01:00:00 EndTime=2026-11-26T10:00:08 PreemptTime=2026-11-26T10:00:00")
    assert one.is_near_its_end() and left.end_time == before and said == []


def test_nodes_that_slurm_takes_away_are_not_billed_any_more(slurm: Slurm) -> None:
    record, _, one, said = job(1800.0)
    slurm.says("JobState=RUNNING NumNodes=2 NodeList=n[1,3]")
    look_until(one, lambda: record.nodes == ["n1", "n3"])
    assert said == ["Slurm has changed the job's nodes to n1, n3", "saved"]
