"""Ends of a start that Slurm does not announce, in a real Slurm with a stand-in for Ray: it is requeued, or loses its
head."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.waiting import wait_until
from stand_in_jobs import ONCE, driver

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize("by", ["scontrol", pytest.param("preemption", marks=pytest.mark.exhaustive)])
def test_a_job_that_slurm_requeues_without_a_warning_saves_and_starts_again_soon(cluster, submit_stand_in, by):
    """Its state is COMPLETING, as a cancelled job's; Slurm kills it after KillWait, 30 s, and then makes it wait."""
    slow = f"""
        def save_slowly(*_):
            time.sleep({8 if by == "scontrol" else 22})
            print("NODES", sum(name.endswith(".json") for name in os.listdir(os.environ["STAND_IN_STATE"])), flush=True)
            save()
        signal.signal(signal.SIGTERM, save_slowly)
        {ONCE}
    """
    job = submit_stand_in(*driver(slow), sbatch=("-N2", "-p", "abrupt"))
    job.wait_log("RUNNING 0")
    if by == "scontrol":
        cluster.run("ctl", "scontrol", "requeue", job.id, user="alice")
    else:
        other = cluster.sbatch("bob", "-p", "urgent", "-N3", "--exclusive", script="#!/bin/bash\nexec sleep 1\n")
    job.wait_log(r"→ requeueing \(143\): Slurm has put the job back into the queue")
    assert by == "scontrol" or cluster.wait_state(other, "COMPLETED")
    log = job.wait_end("COMPLETED") if job.wait_log("RUNNING 1") else ""
    assert "NODES 2\nSAVING\nSAVED\n" in log and "driver saved and ended with exit code 143" in log
    assert "the job is cancelled" not in log
    assert "did not end in time" not in log and "does not move the start time" not in log, log
    assert job.record["restarts"] == 1 and job.leftovers() == []


@pytest.mark.parametrize("while_it", ["runs", pytest.param("starts Ray", marks=pytest.mark.exhaustive)])
def test_a_job_whose_first_node_loses_its_power_goes_on_without_it(cluster, submit_stand_in, while_it):
    """Slurm keeps it RUNNING (--no-kill), with nothing in it, until another node requeues it."""
    slow = {"STAND_IN_FAILS": "1", "STAND_IN_FAILS_AFTER_S": "600"} if while_it == "starts Ray" else {}
    job = submit_stand_in(*driver(ONCE), sbatch=("-N2",), BIGBATCH_HUNG_S="8", **slow)
    job.wait_log("→ head" if slow else "RUNNING 0")
    head = job.record["head"]
    other = next(name for name in job.record["nodes"] if name != head)
    needed = [job.files / "nodes" / f"{name}.json" for name in (head, other)]
    needed.append(Path(job.env["STAND_IN_STATE"]) / "tries")  # the first start of Ray, which is the slow one, has begun
    wait_until(lambda: all(map(Path.exists, needed)), "each node must report, and the head start Ray", 60)
    cluster.poweroff(head)
    job.wait_log(f"{other}: node {head} is lost, and the batch script with it: requeue", 60)
    job.wait_log("RUNNING 1")
    job.wait_end("COMPLETED")
    assert job.record["restarts"] == 1 and head not in job.record["nodes"] and job.leftovers() == []
