"""Nodes that one allocation lends to another's cluster, with stand-ins for Slurm's commands and for Ray.

The same in a real Slurm is in tests/slurm/test_job_states.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_ray import StandInJob

from cluster import record
from cluster.files import write_json


@pytest.fixture
def loan(tmp_path: Path) -> Iterator[StandInJob]:
    """Job 9, which lends its node to job 5, whose record only the test writes."""
    say(tmp_path, "5", "driver", "5.0")
    started = StandInJob(tmp_path, "9", "--attach", "5")
    yield started
    started.process.terminate()
    started.process.wait(120)


def say(
    folder: Path, job_id: str, state: str, run_id: str, *, stop: bool = False, successor: str | None = None
) -> None:
    """What a job says of itself and orders its nodes to do."""
    env = {"BIGBATCH_HOME": str(folder / "home")}
    job = record.JobRecord(job_id, state, address="127.0.0.1:1", successor=successor, reason="the search is done")
    if not record.folder_of(job_id, env).exists():
        job.write(env)
        (record.folder_of(job_id, env) / "nodes").mkdir()
    write_json(record.folder_of(job_id, env) / "control.json", {"run_id": run_id, "stop": stop})
    job.write(env)


def test_lent_nodes_join_the_next_start_and_then_the_successor(loan, tmp_path):
    loan.wait(lambda: loan.log.count("has joined") == 1)
    say(tmp_path, "5", "requeueing", "5.0", stop=True)
    loan.wait(lambda: loan.log.count("waiting for its next start") == 1)
    say(tmp_path, "5", "driver", "5.1")
    loan.wait(lambda: loan.log.count("has joined") == 2)
    say(tmp_path, "5", "requeueing", "5.1", stop=True, successor="6")  # --chain
    loan.wait(lambda: loan.log.count("waiting for its next start") == 2)
    say(tmp_path, "6", "driver", "6.0")
    loan.wait(lambda: "n1 join job 6" in loan.log and loan.log.count("has joined") == 3)
    say(tmp_path, "6", "ended", "6.0", stop=True)
    assert loan.end() == 0
    assert "job 6 has ended: the search is done; leaving" in loan.log
    left = {path.name for job in "56" for path in record.folder_of(job, loan.home).rglob("*")}
    assert left == {"job.json", "control.json", "nodes", "n1-9.log"}, "its own orders and reports are gone"


def test_lent_nodes_that_wait_leave_when_their_own_time_ends(loan, tmp_path):
    loan.wait_log("has joined")
    say(tmp_path, "5", "requeueing", "5.0", stop=True)
    loan.wait_log("waiting for its next start")
    loan.process.send_signal(signal.SIGUSR1)
    assert loan.end() == 0
