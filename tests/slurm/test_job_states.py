"""The job's state machine in a real Slurm, with a stand-in for Ray that starts in a moment.

What only Slurm can say is tested here quickly and often: signals, requeueing, preemption, lost steps. The same
with Ray itself, and with searches, is in test_ray_cluster.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from ray_job import ENDED, START_S, RayJob
from stand_in_jobs import ONCE, WAIT, driver, starts
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def submit(submit_stand_in: Callable[..., RayJob]) -> Callable[..., RayJob]:
    return submit_stand_in


def test_the_states_of_a_job_that_goes_well(cluster, submit):
    """Slurm hands on the soft limit of the shell that submits it: of 120 processes Ray would die without a word."""
    say = """
        import resource
        print(os.environ['RAY_ADDRESS'], os.environ['BIGBATCH_DEADLINE'])
        print('LIMIT', resource.getrlimit(resource.RLIMIT_NPROC)[0])
    """
    job = submit("--keep-logs", *driver(say), sbatch=("-N3",), before=("prlimit", "--nproc=120"))
    log = job.wait_end("COMPLETED")
    states = re.findall(r"→ (\w+)", log)
    assert states == ["credentials", "head", "workers", "registered", "driver", "draining", "ended"], log
    assert "registered: 3 nodes, 6 CPUs, 0 GPUs" in log
    address, deadline = re.search(r"^(10\.77\S+) (\d+)$", log, re.MULTILINE).groups()
    assert address == job.record["address"] and abs(float(deadline) - job.record["end_time"]) == 120
    assert int(re.search(r"LIMIT (-?\d+)", log)[1]) not in range(300)
    assert len(list((job.files / "ray-logs").iterdir())) == 3
    assert job.leftovers() == []
    assert all(p.stat().st_mode & 0o077 == 0 for p in job.files.rglob("*"))


LATER = ("credentials", "workers", "registered", "draining")


@pytest.mark.parametrize("state", ["driver", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in LATER)])
def test_scancel_in_each_state_leaves_nothing(cluster, submit, state):
    text = "sys.exit(0)" if state == "draining" else WAIT
    job = submit(*driver(text), sbatch=("-N3",))
    job.wait_log("RUNNING" if state == "driver" else f"→ {state}")
    cluster.run("ctl", "scancel", job.id, user="alice")
    cluster.wait_state(job.id, ENDED)
    assert job.leftovers() == [], job.everything()
    # By itself, before Slurm would have killed it.
    assert job.record["state"] == "ended" and not (job.files / "token").exists()
    assert cluster.state(job.id) in ("CANCELLED", "COMPLETED"), "not requeued"


@pytest.mark.exhaustive
def test_the_jobs_own_clock_saves_where_usr1_does_not_come(cluster, submit):
    job = submit("--margin", "535", *driver(ONCE), sbatch=("--signal=B:USR2@1",))
    log = job.wait_end("COMPLETED") if job.wait_log("RUNNING 1") else ""
    assert "the time limit is near (--margin)" in log and "SAVED" in log


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--chain",)], ids=["requeue", "chain"])
def test_a_job_whose_partition_cancels_on_preemption_saves_and_goes_on(cluster, submit, options):
    """PreemptMode=CANCEL: Slurm itself would not bring it back."""
    again = "os.environ.get('SLURM_RESTART_COUNT') or os.environ.get('BIGBATCH_PREDECESSOR') or time.sleep(600)"
    job = submit(*options, *driver(again), sbatch=("-N2", "-p", "scrap"))
    job.wait_log("RUNNING 0")
    other = cluster.sbatch("bob", "-p", "urgent", "-N3", "--exclusive", script="#!/bin/bash\nexec sleep 3\n")
    job.wait_log("the job is preempted")
    goes_on = job.wait_log(r"job (\d+) goes on").group(1) if options else job.id
    cluster.wait_state(other, "COMPLETED")
    assert cluster.wait_state(goes_on, ("COMPLETED", "FAILED")) == "COMPLETED", job.everything()
    assert starts(job) == 2 and "SAVED" in job.log
    assert cluster.job(goes_on)["Partition"] == "scrap" and job.leftovers() == []


def test_a_successor_goes_on_where_requeueing_is_forbidden(cluster, submit):
    job = submit("--chain", *driver("os.environ.get('BIGBATCH_PREDECESSOR') or time.sleep(600)"), sbatch=("-N2",))
    job.wait_log("RUNNING")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    successor = job.wait_log(r"job (\d+) goes on").group(1)
    assert cluster.wait_state(successor, ENDED, START_S) == "COMPLETED", job.log
    fields = cluster.job(successor)
    assert (fields["NumNodes"], fields["CPUs/Task"], fields["TimeLimit"]) == ("2", "2", "00:10:00")
    assert job.log.count("RUNNING") == 2, "into the same log"


def kill_ray(cluster: VirtualCluster, node: str) -> None:
    pid = next(pid for pid, line in cluster.processes(node, "alice") if "ray.scripts.scripts" in line)
    cluster.run(node, "kill", "-9", pid)


def test_a_dead_head_restarts_the_job_once(cluster, submit):
    job = submit(*driver(WAIT), sbatch=("-N2",))
    for start in ("RUNNING 0", "RUNNING 1"):
        job.wait_log(start)
        kill_ray(cluster, job.record["head"])
    log = job.wait_end("FAILED")
    assert log.count("is gone: Ray ended on") == 2 and "the head node's Ray died" in log
    assert job.leftovers() == []


def test_a_dead_worker_is_left_behind_and_after_usr1_the_job_saves_and_starts_soon(cluster, submit):
    job = submit(*driver(ONCE), sbatch=("-N2",))
    job.wait_log("RUNNING 0")
    worker = next(n for n in job.record["nodes"] if n != job.record["head"])
    kill_ray(cluster, worker)
    job.wait_log(f"node {worker} is gone: Ray ended on {worker}.*; continuing with 1")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    log = job.wait_end("COMPLETED") if job.wait_log("RUNNING 1") else ""
    assert log.index("SAVED") < log.index("→ requeueing") < log.index("RUNNING 1")
    assert job.record["restarts"] == 1 and job.leftovers() == []


@pytest.mark.exhaustive
def test_a_suspended_job_goes_on_with_all_its_nodes(cluster, submit):
    job = submit(*driver("time.sleep(20)"), sbatch=("-N2",), BIGBATCH_HUNG_S="8")
    job.wait_log("RUNNING")
    cluster.run("ctl", "scontrol", "suspend", job.id)
    time.sleep(15)
    cluster.run("ctl", "scontrol", "resume", job.id)
    assert "hangs" not in job.wait_end("COMPLETED") and starts(job) == 1
    assert job.leftovers() == []


@pytest.mark.exhaustive
def test_what_a_killed_step_left_on_a_node_is_removed_by_the_next(cluster, submit):
    job = submit(*driver(ONCE), sbatch=("-w", "n1"))
    job.wait_log("RUNNING 0")
    found = cluster.processes("n1", "alice")
    pid = next(pid for pid, line in found if "-m bigbatch.cluster.node" in line and "srun" not in line)
    cluster.run("n1", "kill", "-9", pid)
    job.wait_log("RUNNING 1")
    job.wait_end("COMPLETED")
    assert "left behind by a killed job" in (job.files / "nodes" / "n1.log").read_text()
    assert job.leftovers("n1") == []
