"""What a job meets at its start: folders that nodes do not see, another job's variables, signals to its steps.

Ray is a stand-in; Slurm is real.
"""

from __future__ import annotations

import pytest

from ray_job import RayJob
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SAVING = """\
import os, signal, sys
def save(*_):
    print("SAVED", flush=True); sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("RUNNING", os.environ.get("SLURM_RESTART_COUNT", "0"), os.environ.get("SLURM_MEM_PER_NODE"), flush=True)
signal.pause() if "SLURM_RESTART_COUNT" not in os.environ else None
"""


def refused(job: RayJob) -> str:
    """The one line with which a job ends before it does anything, beside Slurm's own."""
    job.wait_end("FAILED")
    lines = [line for line in job.log.splitlines() if "chdir" not in line or "error: the job" in line]
    assert lines[-1].startswith("ray_head_workers.slurm: error: ") or "→ ended (2)" in lines[-1], job.everything()
    assert "→ driver" not in job.log and "Traceback" not in job.log
    return next(line for line in lines if line.startswith("ray_head_workers.slurm: error: "))


def test_folders_that_the_nodes_do_not_see_are_refused(cluster: VirtualCluster, submit_stand_in):
    """/tmp is each node's own: Slurm runs a job that was submitted from a folder there in the node's /tmp."""
    for node in ("ctl", "n1"):
        cluster.run(node, "mkdir", "/tmp/own", user="alice")
    work = submit_stand_in("--space", "smoke", sbatch=("--chdir=/tmp/own", "-w", "n2"))
    assert "the job's work folder" in refused(work) and "'/tmp/own', which n2 does not have" in refused(work)
    output = submit_stand_in("--space", "smoke", "--output", "/tmp/runs", sbatch=("-w", "n2"))
    assert "a study must be on a file system that the nodes share; got '/tmp/runs', which is n2's" in refused(output)
    shared = submit_stand_in("--", "true", sbatch=("--chdir=/tmp/own", "-N2", "-w", "n1,n2"))
    assert "must be on a file system that all nodes share; n2 does not see /tmp/own" in refused(shared)
    cluster.run("n1", "rmdir", "/tmp/own", user="alice")
    assert [job.leftovers() for job in (work, output, shared)] == [[], [], []]


def test_a_job_from_the_shell_of_another_one_has_variables_of_its_own(cluster: VirtualCluster, submit_stand_in):
    """A task of an array with 500 MB and a GPU submits it: srun would refuse two kinds of memory. TERM to its
    steps saves."""
    command, outer = ("--", "python", "-u", "-c", SAVING), ("--array=3", "--gres=gpu:1", "--mem=500", "-c1")
    job = submit_stand_in(*command, outer=outer)
    job.wait_log("RUNNING 0 None")
    cluster.run("ctl", "scancel", "--signal=TERM", job.id, user="alice")
    job.wait_log("→ requeueing")
    assert "SAVED" in job.log and "is gone" not in job.log, job.everything()
    cluster.run("ctl", "scancel", job.id, user="alice")
