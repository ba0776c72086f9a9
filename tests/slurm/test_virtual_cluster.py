"""The virtual cluster does what the tests that use it rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import psutil
import pytest

from helpers.waiting import wait_until
from virtual_cluster import PLACE, PREFIX, CommandFailed, VirtualCluster
from virtual_config import FREEZER

pytestmark = pytest.mark.slurm

SLEEP = "#!/bin/bash\nexec sleep 300\n"


def batch(text: str) -> str:
    return "#!/bin/bash\n" + textwrap.dedent(text)


def leftovers(name: str) -> list[str]:
    """What of a cluster can be seen outside of it."""
    found = [str(path) for folder in (PLACE, FREEZER) for path in folder.glob(name)]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    for process in psutil.process_iter(["cmdline"]):
        if name in " ".join(process.info["cmdline"] or ()):
            found.append(str(process.info))
    return found


def test_three_nodes_run_a_job_of_an_ordinary_user(cluster: VirtualCluster) -> None:
    assert cluster.node_states() == {"n1": "idle", "n2": "idle", "n3": "idle"}
    job = cluster.sbatch("alice", "-N3", script=batch("srun bash -c 'echo $(hostname) $(id -un) $(hostname -i)'"))
    cluster.wait_state(job, "COMPLETED")
    lines = sorted((cluster.home("alice") / f"slurm-{job}.out").read_text().splitlines())
    assert lines == ["n1 alice 10.77.0.1", "n2 alice 10.77.0.2", "n3 alice 10.77.0.3"]


def test_jobs_on_one_node_see_their_own_gpus(cluster: VirtualCluster) -> None:
    folder = cluster.folder("alice")
    script = batch("echo $CUDA_VISIBLE_DEVICES > $SLURM_JOB_ID")
    both = cluster.sbatch("alice", "-w", "n1", "--gres=gpu:2", script=script, cwd=folder)
    cluster.wait_state(both, "COMPLETED")
    assert (folder / both).read_text() == "0,1\n"
    hold = batch("echo $CUDA_VISIBLE_DEVICES > $SLURM_JOB_ID; sleep 300")
    jobs = [cluster.sbatch("alice", "-w", "n1", "-n1", "--gres=gpu:1", script=hold, cwd=folder) for _ in range(2)]
    written = lambda job: (folder / job).exists() and (folder / job).read_text()  # noqa: E731
    wait_until(lambda: all(map(written, jobs)), "both jobs must write their GPU", 120)
    assert {(folder / job).read_text() for job in jobs} == {"0\n", "1\n"}


def test_nodes_have_their_own_folders_processes_and_sockets(cluster: VirtualCluster) -> None:
    serve = "import socket, time; s = socket.create_server(('', 7777)); open('/tmp/mine', 'w'); time.sleep(300)"
    # Jobs of other tests may have left there what ordinary programs leave in /tmp.
    before = {node: cluster.files(node) for node in ("n1", "ctl")}
    cluster.sbatch("alice", "-w", "n2", script=batch(f'exec {sys.executable} -S -c "{serve}"'))
    wait_until(lambda: Path("/tmp/mine") in cluster.files("n2"), "the job must write its file", 120)
    assert [line for _, line in cluster.processes("n2", "alice") if "7777" in line]
    assert [(s.port, s.address) for s in cluster.listening("n2") if s.port == 7777] == [(7777, "0.0.0.0")]
    for other in ("n1", "ctl"):
        assert cluster.processes(other) == []
        assert cluster.files(other) == before[other]
        assert not [s for s in cluster.listening(other) if s.port == 7777]
    assert cluster.processes("n2", "bob") == []


def test_users_and_commands_are_ordinary(cluster: VirtualCluster) -> None:
    assert cluster.home("alice").stat().st_mode & 0o777 == 0o700
    assert cluster.run("n1", "ls", cluster.home("alice"), user="bob", check=False).returncode != 0
    assert cluster.run("ctl", "cat", user="bob", stdin="text").stdout == "text"
    assert cluster.run("ctl", "printenv", "X", user="bob", env={"X": "y"}).stdout == "y\n"
    with pytest.raises(CommandFailed, match="No such file"):
        cluster.run("ctl", "ls", "/nowhere")
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("ctl", "bash", "-c", "sleep 299; true", timeout_s=0.5)
    wait_until(lambda: cluster.processes("ctl") == [], "no process may be left on ctl", 120)


def test_python_and_the_repository_are_reachable_wherever_they_lie(cluster: VirtualCluster) -> None:
    seen = cluster.run("n1", sys.executable, "-c", "import pytest; print(pytest.__file__)", user="alice").stdout
    # Not psutil: in this process it may be the one that Ray brings along.
    assert seen.strip() == pytest.__file__
    assert cluster.run("n3", "cat", Path(__file__).resolve(), user="bob").stdout == Path(__file__).read_text()
    assert cluster.run("n1", "touch", Path(__file__).resolve(), check=False).returncode != 0


def test_trees_in_closed_folders_are_reachable(slurm_machine: None, tmp_path: Path) -> None:
    """As in CI: a virtual environment in a folder of mktemp's, a clone that is closed itself, links to both."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    venv.create(closed / "environment", symlinks=True, with_pip=False)
    clone = closed / "clone"
    (clone / "package").mkdir(parents=True)
    (clone / "package" / "file").write_text("text")
    clone.chmod(0o700)
    (tmp_path / "link").symlink_to(clone)
    before = {path: path.stat().st_mode for path in (closed, clone, Path("/root"), tmp_path)}
    trees = [closed / "environment", clone, clone / "package", tmp_path / "link"]
    with VirtualCluster(nodes=1, gpus=0, readable=trees) as vc:
        for place in ("ctl", "n1"):
            python = (closed / "environment" / "bin" / "python", "-c", "import sys; print(sys.prefix)")
            assert vc.run(place, *python, user="alice").stdout.strip() == str(closed / "environment")
            for path in (clone, tmp_path / "link"):
                assert vc.run(place, "cat", path / "package" / "file", user="bob").stdout == "text"
            assert vc.run(place, "touch", clone / "package" / "new", check=False).returncode != 0
    assert {path: path.stat().st_mode for path in before} == before
    assert (clone / "package" / "file").read_text() == "text"


@pytest.mark.exhaustive  # of Slurm's own timing: fails now and then on a machine that has just been busy
def test_a_requeued_job_runs_again(cluster: VirtualCluster) -> None:
    folder = cluster.folder("alice")
    job = cluster.sbatch("alice", script=batch("echo run $SLURM_RESTART_COUNT >> out; exec sleep 300"), cwd=folder)
    wait_until((folder / "out").exists, "the job must write its output", 120)
    cluster.run("ctl", "scontrol", "requeue", job, user="alice")
    cluster.wait_state(job, "PENDING")
    cluster.start_now(job)
    wait_until(lambda: (folder / "out").read_text() == "run\nrun 1\n", "the job must run twice", 120)


@pytest.mark.exhaustive  # of Slurm's own timing: fails now and then on a machine that has just been busy
def test_urgent_jobs_preempt_by_requeue_after_a_warning(cluster: VirtualCluster) -> None:
    folder = cluster.folder("alice")
    script = batch("""
        trap 'echo batch term >> out; exit' TERM
        srun bash -c 'trap "echo step term >> out; exit" TERM; echo step start >> out; while :; do sleep 0.2; done' &
        while :; do sleep 0.2; done
    """)
    job = cluster.sbatch("alice", "-N3", "--exclusive", script=script, cwd=folder)
    out, begun = folder / "out", 3 * "step start\n"
    wait_until(lambda: out.exists() and out.read_text() == begun, "the job must write its output", 120)
    urgent = cluster.sbatch("bob", "-N1", "-p", "urgent", script=SLEEP)
    cluster.wait_state(urgent, "RUNNING")
    assert cluster.state(job) == "PENDING"
    # The steps are warned when the grace begins, the batch script when it ends.
    assert out.read_text() == begun + 3 * "step term\n" + "batch term\n"
    assert cluster.job(job)["Restarts"] == "1"


CARDS = (("n2", "eth0"), ("ctl", "br0"))


def hardware_address(cluster: VirtualCluster, node: str, card: str) -> str:
    return cluster.run(node, "ip", "-brief", "link", "show", card).stdout.split()[2]


@pytest.mark.exhaustive  # half a minute of Slurm's own waits
def test_a_node_loses_power_and_comes_back(cluster: VirtualCluster) -> None:
    stay = cluster.sbatch("alice", "-w", "n1", script=SLEEP)
    lost = cluster.sbatch("alice", "-w", "n2", "--no-requeue", script=SLEEP)
    back = cluster.sbatch("alice", "-w", "n3", "--requeue", script=SLEEP)
    for job in (stay, lost, back):
        cluster.wait_state(job, "RUNNING")
    cards = [hardware_address(cluster, *card) for card in CARDS]
    cluster.poweroff("n2")
    cluster.poweroff("n3")
    cluster.wait_state(lost, "NODE_FAIL")
    cluster.wait_state(back, "PENDING")
    assert cluster.state(stay) == "RUNNING"
    cluster.poweron("n2")
    wait_until(lambda: cluster.node_states()["n2"] == "idle", "n2 must come back", 120)
    assert [hardware_address(cluster, *card) for card in CARDS] == cards, "others would send to the old one for a while"


def test_a_frozen_node_hangs_and_goes_on(cluster: VirtualCluster) -> None:
    count = cluster.folder("alice") / "count"
    cluster.sbatch("alice", "-w", "n2", script=batch(f"while :; do echo x >> {count}; sleep 0.1; done"))
    wait_until(count.exists, "the job must count", 120)
    cluster.suspend("n2")
    size = count.stat().st_size
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("n2", "sh", "-c", "kill -STOP $$", timeout_s=1)
    assert count.stat().st_size == size
    assert cluster.run("n1", "hostname").stdout == "n1\n"
    cluster.resume("n2")
    wait_until(lambda: count.stat().st_size > size, "the job must go on", 120)


def test_cancelling_leaves_no_process(cluster: VirtualCluster) -> None:
    if not cluster.tracks_all_processes:
        pytest.skip("Slurm loses processes that leave their session where control groups of version 1 are missing.")
    job = cluster.sbatch("alice", "-w", "n1", script=batch("setsid bash -c \"trap '' TERM; sleep 298\" & sleep 298"))
    wait_until(lambda: len(cluster.processes("n1", "alice")) >= 3, "all three processes must run", 120)
    cluster.run("ctl", "scancel", job, user="alice")
    wait_until(lambda: cluster.processes("n1") == [], "no process may be left on n1", 120)


def test_down_leaves_nothing(slurm_machine: None) -> None:
    devices = sorted(os.listdir("/sys/class/net"))
    vc = VirtualCluster(nodes=2).up()
    name = vc.shared.name
    assert name.startswith(PREFIX)
    vc.wait_state(vc.sbatch("alice", "-N2", script=SLEEP), "RUNNING")
    vc.suspend("n1")
    assert sorted(os.listdir("/sys/class/net")) == devices
    vc.down()
    assert leftovers(name) == []
    vc.down()


def test_the_cluster_ends_with_the_process_that_started_it(slurm_machine: None) -> None:
    code = "from virtual_cluster import VirtualCluster as V; print(V(nodes=1).up().shared, flush=True); input()"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdin=pipe, stdout=pipe, text=True) as starter:
        name = Path(starter.stdout.readline().strip()).name
        assert leftovers(name)
        starter.kill()
    wait_until(lambda: leftovers(name) == [], lambda: str(leftovers(name)), 120)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in VirtualCluster.available()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("virtual_requirements.PROGRAMS", "no-such-daemon sh")
    assert VirtualCluster.available().startswith("no-such-daemon not installed. Run as root: apt-get update && apt-get")
