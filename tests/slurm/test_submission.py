"""``bigbatch cluster`` on a real Slurm: what it submits is what Slurm understands, and what it shows is so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.waiting import wait_until
from virtual_cluster import REPOSITORY, VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PYTHON = sys.executable
# In place of the job's inside, which has tests of its own: shows what reached it, then waits.
STAND_IN = """\
if [ "$1" = --check-search ]; then   # as it is: the search is checked on the login node
    export BIGBATCH_CWD=$PWD
    cd "$BIGBATCH_ROOT/src" && exec "$BIGBATCH_PYTHON" -m bigbatch.cluster.submission.search_check "$@"
fi
echo "arguments: $*"
echo "root $BIGBATCH_ROOT python $BIGBATCH_PYTHON"
mkdir -p "$BIGBATCH_HOME/jobs/$SLURM_JOB_ID/nodes"
srun --overlap bash -c 'echo "node $(hostname) GPUs $CUDA_VISIBLE_DEVICES" \\
    > "$BIGBATCH_HOME/jobs/$SLURM_JOB_ID/nodes/$(hostname).log"'
# As the job's inside: a shell cannot trap what its batch script ignores.
exec "$BIGBATCH_PYTHON" -c '
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("warned")))
print("waiting", flush=True)
time.sleep(600)'
"""


@pytest.fixture(scope="module")
def checkout(cluster: VirtualCluster) -> Path:
    """A user's own checkout of what submitting needs, in a folder with a blank in its name."""
    root = cluster.folder("alice", "check out")
    for name in ("cluster", "tune", "train_loop", "search_spaces", "src"):
        leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY / name, root / name, symlinks=True, ignore=leave)
    (root / "cluster" / "ray_head_workers.slurm").write_text(STAND_IN)
    cluster.run("ctl", "chown", "-R", "alice:", root)
    return root


def bigbatch(
    cluster: VirtualCluster, root: Path, *arguments: object, check: bool = True, timeout_s: float = 240, **more: str
):
    command = (PYTHON, "src/bigbatch", "cluster", *arguments)
    env = {"BIGBATCH_PYTHON": PYTHON, **more}
    return cluster.run("ctl", *command, user="alice", cwd=root, env=env, check=check, timeout_s=timeout_s)


def submitted(cluster: VirtualCluster, root: Path, *arguments: object) -> str:
    found = re.search(r"Job (\d+) is submitted", bigbatch(cluster, root, "submit", *arguments).stdout)
    assert found
    return found[1]


def wait_shown(cluster: VirtualCluster, root: Path, text: str, *which: object) -> None:
    """Until the logs of a job, or of a node of it, have the text."""

    def shown() -> bool:
        return text in bigbatch(cluster, root, "logs", *which, check=False).stdout

    wait_until(shown, f"the log must show {text!r}", 120)


def test_a_job_gets_what_was_asked_for_and_the_warning_and_its_log_is_where_logs_looks(
    cluster: VirtualCluster, checkout: Path
) -> None:
    job = submitted(cluster, checkout, "-N", 2, "--time", "10", "--name", "my search", "--space", "smoke")
    cluster.wait_state(job, "RUNNING")
    wait_shown(cluster, checkout, "root", job)
    fields = cluster.run("ctl", "scontrol", "-o", "show", "job", job).stdout
    # All GPUs and CPUs of the nodes: nothing was named, so Slurm was asked what they have.
    for expected in ("JobName=my search", "Partition=main", "NumNodes=2", "CPUs/Task=2", "TimeLimit=00:10:00",
                     "Requeue=1", "gpu:2", f"StdOut={cluster.home('alice')}/.bigbatch/logs/{job}.log"):  # fmt: skip
        assert expected in fields, fields
    log = bigbatch(cluster, checkout, "logs", job).stdout
    assert f"arguments: --space smoke\nroot {checkout} python {PYTHON}\n" in log
    wait_shown(cluster, checkout, "GPUs 0,1", job, "--node", "n2")
    assert bigbatch(cluster, checkout, "logs", job, "--node", "n3", check=False).returncode == 2
    wait_shown(cluster, checkout, "waiting", job)  # the trap is set
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job, user="alice")  # as before the end
    cluster.wait_state(job, "COMPLETED")
    assert bigbatch(cluster, checkout, "logs", job).stdout.endswith("warned\n")


def test_queue_follow_and_cancel(cluster: VirtualCluster, checkout: Path, tmp_path: Path) -> None:
    job = submitted(cluster, checkout, "-N", 1, "--gpus-per-node", 1, "--", "echo", "a b")
    cluster.wait_state(job, "RUNNING")
    line = next(row for row in bigbatch(cluster, checkout, "queue").stdout.splitlines() if row.startswith(job))
    assert line.split()[1] == "RUNNING" and "bigbatch" in line
    assert "No jobs." in cluster.run(
        "ctl", PYTHON, "src/bigbatch", "cluster", "queue", user="bob", cwd=REPOSITORY,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    ).stdout  # fmt: skip
    logs = ("timeout", "30", PYTHON, "src/bigbatch", "cluster", "logs", job, "-f")  # it follows until it is ended
    follow = cluster.command("ctl", *logs, user="alice", cwd=checkout)
    shown = tmp_path / "shown"
    with shown.open("w") as output, subprocess.Popen(follow, stdout=output) as following:
        wait_until(lambda: "arguments: -- echo a b\n" in shown.read_text(), "the log must show it", 120)
        following.wait(timeout=120)
    assert f"Cancelled: {job}" in bigbatch(cluster, checkout, "cancel", job).stdout
    assert cluster.wait_state(job, "CANCELLED")


def test_what_slurm_would_refuse_or_never_start_is_refused_before(cluster: VirtualCluster, checkout: Path) -> None:
    before = cluster.run("ctl", "squeue", "-h", "-t", "all", "-o", "%i").stdout
    for arguments, expected in (
        (("--gpus-per-node", 3), "has 2 GPUs"),
        (("--sbatch=--constraint=none",), "failed"),  # only Slurm knows: its own words, in one line
    ):
        done = bigbatch(cluster, checkout, "submit", *arguments, check=False)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert cluster.run("ctl", "squeue", "-h", "-t", "all", "-o", "%i").stdout == before


def findings(text: str) -> dict[str, tuple[str, str]]:
    parsed = [json.loads(line) for line in text.splitlines() if line.startswith('{"status"')]
    return {entry["what"]: (entry["status"], entry["seen"]) for entry in parsed}


def test_the_doctor_finds_an_allocation_healthy_but_for_gpus_that_torch_cannot_use(cluster: VirtualCluster) -> None:
    script = f"#!/bin/bash\nexec {PYTHON} -m bigbatch cluster doctor --json\n"
    env = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")}
    job = cluster.sbatch("alice", "-N3", "--gres=gpu:2", "-c2", script=script, env=env)
    cluster.wait_state(job, ("COMPLETED", "FAILED"), timeout_s=500)
    found = findings(Path(cluster.job(job)["StdOut"]).read_text())
    failed = {what: seen for what, (status, seen) in found.items() if status == "FAIL"}
    assert failed.keys() == {"GPUs"}
    # The nodes' GPUs are stand-ins: torch says that there is no driver, or that it was built without CUDA.
    assert re.fullmatch(r"n1, n2, n3: torch can use none: .*(NVIDIA|CUDA).*", failed["GPUs"]), failed
    assert found["shared folder"][0] == "OK" and found["all-reduce"] == ("OK", "gloo")


def test_the_doctor_on_the_login_node_asks_slurm(cluster: VirtualCluster) -> None:
    found = findings(bigbatch(cluster, REPOSITORY, "doctor", "--json", check=False).stdout)
    assert found["Slurm"][0] == found["shared folder"][0] == "OK"
