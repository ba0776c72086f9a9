"""A job that was submitted with an older batch script and is still queued when the checkout is brought up to date."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import stand_in_ray
from ray_job import SCRIPT, RayJob
from virtual_cluster import REPOSITORY, VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

OLDER = REPOSITORY / "tests" / "older" / "data" / "6dde4d6" / "scripts"
DRIVER = """
import os, signal, sys, time
start = os.environ.get("SLURM_RESTART_COUNT", "0")
def save(*_):
    print("SAVED")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("RUNNING", start)
if start == "0":
    time.sleep(600)
"""
"""Saves when it is told to; started again, it has nothing left to do."""


@pytest.fixture
def checkout(cluster: VirtualCluster) -> Path:
    """A user's own clone, with the batch script as it was."""
    root = cluster.folder("alice", "clone")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        source = REPOSITORY / name
        if not name.startswith(("tests/", "benchmarks/", "docs/")) and (source.is_symlink() or source.is_file()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    shutil.copy(OLDER / "ray_head_workers.txt", root / "cluster" / SCRIPT.name)
    cluster.run("ctl", "chown", "-R", "alice:", root)
    return root


def test_a_queued_job_starts_in_the_checkout_of_today(
    cluster: VirtualCluster, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm keeps the older script; what it calls is of today. Two nodes, one restart, a stand-in for Ray."""
    script, package = checkout / "cluster" / SCRIPT.name, cluster.folder("alice", "stand-in")
    stand_in_ray.install(package)
    env = {"PYTHONPATH": str(package), "STAND_IN_STATE": str(cluster.folder("alice", "state"))}
    monkeypatch.setattr(sys.modules[RayJob.__module__], "SCRIPT", script)
    job = RayJob(cluster, "alice", ("-N2", "--hold"), ("--", "python", "-u", "-c", DRIVER), **env)
    shutil.copy(SCRIPT, script)
    cluster.run("ctl", "scontrol", "release", job.id, user="alice")
    job.wait_log("RUNNING 0")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    job.wait_log("RUNNING 1")
    log = job.wait_end("COMPLETED")
    assert "registered: 2 nodes" in log and log.index("SAVED") < log.index("RUNNING 1")
    assert job.record["restarts"] == 1 and job.leftovers() == []
