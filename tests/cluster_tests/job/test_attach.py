"""Nodes that one allocation lends to another's cluster, with stand-ins for Slurm's commands and for Ray.

The same in a real Slurm is in tests/slurm/test_job_states.py.
"""

import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bigbatch.base.atomic_files import write_json
from bigbatch.cluster.record import job_record
from helpers.stand_in_ray import StandInJob


@pytest.fixture
def loan(tmp_path: Path) -> Iterator[StandInJob]:
    """Job 9, which lends its node to job 5, whose record only the test writes."""
    say(tmp_path, "5", "driver", "5.0")
    started = StandInJob(tmp_path, "9", "--attach", "5")
    yield started
    started.process.terminate()
    started.process.wait(120)


def report(folder: Path, job_id: str, stem: str, owner: str, beat: int) -> None:
    """What a node says of itself in the folder of job ``job_id``."""
    facts = {"job": owner, "run_id": f"{owner}.0", "beat": beat, "state": "ready", "ip": "10.77.0.9"}
    write_json(folder / "home" / "jobs" / job_id / "nodes" / f"{stem}.json", facts)


def say(
    folder: Path, job_id: str, state: str, run_id: str, *, stop: bool = False, successor: str | None = None
) -> None:
    """What a job says of itself and orders its nodes to do."""
    env = {"BIGBATCH_HOME": str(folder / "home")}
    job = job_record.JobRecord(job_id, state, address="127.0.0.1:1", successor=successor, reason="the search is done")
    if not job_record.job_folder(job_id, env).exists():
        job.write(env)
        (job_record.job_folder(job_id, env) / "nodes").mkdir()
    write_json(job_record.job_folder(job_id, env) / "control.json", {"run_id": run_id, "stop": stop})
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
    left = {path.name for job in "56" for path in job_record.job_folder(job, loan.home).rglob("*")}
    assert left == {"job.json", "control.json", "nodes", "n1-9.log"}, "its own orders and reports are gone"


def test_a_lent_node_that_hangs_is_given_up(tmp_path, monkeypatch):
    """Its wrapper is stopped, as on a node that hangs; a node of the job's own goes on."""
    monkeypatch.setenv("BIGBATCH_HUNG_S", "4")
    say(tmp_path, "5", "driver", "5.0")
    loan = StandInJob(tmp_path, "9", "--attach", "5")
    loan.wait_log("has joined")
    step = next(p for p in psutil.Process(loan.process.pid).children() if "bigbatch.cluster.node" in p.cmdline())
    step.suspend()
    beats = itertools.count(1)

    def seen() -> bool:
        report(tmp_path, "5", "n5", "5", next(beats))
        return "n1 hangs: no heartbeat; ending its step" in loan.log

    loan.wait(seen)
    loan.wait_log("waiting for its next start")
    say(tmp_path, "5", "ended", "5.0", stop=True)
    assert loan.end() == 0 and not step.is_running()


def test_a_job_has_a_lent_node_that_hangs_drained(tmp_path):
    words = ("--", sys.executable, "-c", "import signal; signal.pause()")
    job = StandInJob(tmp_path, "7", *words, BIGBATCH_HUNG_S="4")
    in_ray = {"ip": "10.77.0.9", "cpus": "1", "gpus": "0", "labels": {"slurm_job": "9"}}
    job.wait_log("→ driver")
    write_json(tmp_path / "state" / "10.77.0.9.json", in_ray)
    report(tmp_path, "7", "n2-9", "9", 1)
    job.wait_log("nodes are lent by 9")
    job.wait_log("node n2, lent by job 9, hangs: no heartbeat; Ray places nothing there any more")
    job.wait_log("nodes are lent by nobody any more")
    drained = (tmp_path / "state" / "drained").read_text().splitlines()
    assert len(drained) == 1 and drained[0].startswith(f"{b'10.77.0.9'.hex()} 2 no heartbeat")
    job.says("JobState=CANCELLED")
    job.process.terminate()
    assert job.end() == 143


def test_lent_nodes_that_wait_leave_when_their_own_time_ends(loan, tmp_path):
    loan.wait_log("has joined")
    say(tmp_path, "5", "requeueing", "5.0", stop=True)
    loan.wait_log("waiting for its next start")
    loan.process.send_signal(signal.SIGUSR2)
    assert loan.end() == 0
