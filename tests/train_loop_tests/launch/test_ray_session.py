"""The private Ray's folder and clean-up: its own things go, nobody else's."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from bigbatch.base import private_folder, processes
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch import ray_session
from helpers.commands import run_process
from helpers.paths import ROOT
from helpers.processes import clean_environment

SERVERS = """
import json, os, sys, threading
from pathlib import Path
import psutil
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.ray_session import LocalRay
from bigbatch.train_loop.launch.trainer import fit_from_driver
from bigbatch.train_loop.launch.trial_task import TrialTask
class Process:
    def has(self, module):
        return module in sys.modules
    def threads(self):
        import torch
        return [os.environ["OMP_NUM_THREADS"], torch.get_num_threads()]
folder = Path(sys.argv[1])
task = TrialTask(
    name="run", config=TrainConfig(), workers=1, worker_resources={"CPU": 2.0}, restarts=0, checkpoint_every_s=0.0,
    **dict.fromkeys(("ray_storage", "checkpoint_dir", "stop_file", "log_file"), folder / "run"),
)
leaving, ends = threading.Event(), []
waits = threading.Thread(target=lambda: ends.append(fit_from_driver(task, leaving).stopped))  # for ever: one CPU
with LocalRay(1, 0, folder / "ray.log"):
    import ray
    waits.start()
    process = ray.remote(num_cpus=0)(Process)
    made = [process.options(runtime_env=env).remote() for env in ({}, {}, {"env_vars": {"A": "b"}})]
    loaded = ray.get([one.has.remote("torch") for one in made], timeout=120)
    threads = ray.get([one.threads.remote() for one in made], timeout=120)
    names = [(one.name(), one.net_connections("tcp")) for one in psutil.Process().children(recursive=True)]
    ports = {s.laddr.port for _, sockets in names for s in sockets if s.status == psutil.CONN_LISTEN}
    found = [[node["MetricsExportPort"] for node in ray.nodes()], sorted(ports), loaded, threads]
    groups = [len(ray.util.placement_group_table())]
    leaving.set()
    waits.join(60)
    groups.append([one["state"] for one in ray.util.placement_group_table().values()])
print(json.dumps([*found, ends + groups]))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_a_private_ray_opens_no_server_of_metrics_unless_it_is_asked_and_its_processes_have_torch(tmp_path):
    """Ray's own are at 44217, 44227 and a port that its nodes name, on all interfaces and without a token.

    A process has torch before it has work. A run whose Ray has been ended, as by a second Ctrl-C, starts no other one.
    A user's warnings that are errors would end Ray's dashboard.
    """
    without_threads = {k: v for k, v in clean_environment().items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", SERVERS, str(tmp_path)], capture_output=True, text=True, timeout=240, cwd=tmp_path,
        env={**without_threads, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error::DeprecationWarning"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    named, listening, torch, threads, left = json.loads(done.stdout)
    assert torch == [True] * 3
    assert threads == [["1", 1]] * 3
    assert len(listening) >= 4 and not {44217, 44227} & set(listening)
    assert max(named) <= 0
    assert left == [True, 1, ["REMOVED"]]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "\nThe last 20 lines of /r/dashboard.log (it contains …): \n  File x\n\nTypeError: no docs\n",
            "TypeError: no docs",
        ),
        ("\nno GCS\nmore", "no GCS"),
        ("", "OSError"),
    ],
)
def test_the_reason_of_a_ray_that_does_not_start_is_never_empty(said, reason):
    """Where the dashboard ends, Ray's first line only announces its log."""
    assert ray_session.reason_of(OSError(said)) == reason


IN_A_WORKER = """
import sys
from pathlib import Path
from bigbatch.train_loop.launch.ray_session import LocalRay
with LocalRay(1, 0, Path(sys.argv[1], "ray.log")):
    import ray
    task = ray.remote(lambda: sys.executable).options(runtime_env={"env_vars": {"A": "b"}})
    python = ray.get(task.remote(), timeout=60)
    print(python)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_workers_start_where_the_path_of_python_has_a_space(tmp_path):
    """An environment in ``~/My Projects/venv``: no worker started, and each trial waited six minutes for one."""
    folder = tmp_path / "My Projects"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    path = os.pathsep.join([str(ROOT / "src"), *(one for one in sys.path if "site-packages" in one)])
    done = run_process(python, "-c", IN_A_WORKER, tmp_path, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(python)


def test_processes_that_name_the_folder_or_log_into_it_are_ended_and_no_others(tmp_path):
    """An agent of Ray hides its command line: it is known by its log."""
    ours, others = tmp_path / "bb-ray-a", tmp_path / "bb-ray-ab"
    started: list[subprocess.Popen[bytes]] = []

    def has_its_command_line() -> bool:  # a new process has it only after a moment
        return Path(f"/proc/{started[-1].pid}/cmdline").read_bytes().startswith(name.encode())

    for folder in (ours, others):
        folder.mkdir()
        for name, word in (("python", f"/ray/ {folder}/session"), ("ray::DashboardAgent", "ray::"), ("python", "")):
            command = [name, "-c", "import signal; signal.pause()", word or f"{folder}/session/logs"]
            with (folder / "agent.log").open("w") as log:
                started.append(subprocess.Popen(command, executable=sys.executable, stdout=log))
            assert processes.wait_until(has_its_command_line, 60)
    try:
        processes.end_processes_of(ours)
        for process in started[:2]:
            process.wait(60)  # its command line goes a moment before it
        assert [process.poll() for process in started[2:]] == [None] * 4, "of another folder, and a reader"
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_folders_of_living_searches_stay_and_those_of_killed_ones_go(monkeypatch):
    base = tempfile.TemporaryDirectory(dir="/tmp", prefix="t")  # short: its path leaves room for sockets
    tmp_path = Path(base.name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, _owner = ray_session.private_ray_folder()
    code = (
        "import tempfile, sys, os, signal; tempfile.tempdir = sys.argv[1]\n"
        "from bigbatch.train_loop.launch.ray_session import private_ray_folder\n"
        "made = private_ray_folder(); print(made[0], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    killed = Path(subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True).stdout.strip())
    assert killed.is_dir() and killed.parent == tmp_path
    (tmp_path / f"{ray_session.PREFIX}ba4e").mkdir()  # about to get its owner
    (tmp_path / "somebody-elses").mkdir()
    ray_session.remove_stale_folders()
    assert {p.name for p in tmp_path.iterdir()} == {living.name, "bb-ray-ba4e", "somebody-elses"}
    base.cleanup()


def test_workers_find_this_repository_first_and_never_the_folder_of_a_script(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", str(ROOT / "src")]))
    assert ray_session.python_path().split(os.pathsep) == [str(ROOT / "src"), "/elsewhere"]
    assert str(Path(ROOT, "tune")) not in ray_session.python_path().split(os.pathsep)


def test_a_folder_that_a_dying_process_makes_again_goes_too(tmp_path, monkeypatch):
    folder = tmp_path / f"{ray_session.PREFIX}x"
    folder.mkdir()
    calls = []
    real = private_folder.shutil.rmtree

    def rmtree(path, **options):
        real(path, **options)
        calls.append(path)
        if calls == [folder]:
            (folder / "r" / "session").mkdir(parents=True)

    monkeypatch.setattr(private_folder.shutil, "rmtree", rmtree)
    private_folder.remove_folder(folder)
    assert not folder.exists() and calls.count(folder) == 2


def test_an_address_where_somebody_listens_passes_and_others_are_refused_at_once(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_session.check_reachable("auto")  # Ray looks for a cluster of this machine
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ray_session.check_reachable(f"127.0.0.1:{port}")
        ray_session.check_reachable(f"ray://127.0.0.1:{port}")
    with socket.socket() as silent:  # it keeps the port, so that nobody else can listen there, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        for address in ("auto", f"127.0.0.1:{port}", "nowhere", "127.0.0.1:99999", "no.such.host.invalid:6379"):
            with pytest.raises(ConfigError, match="--address"):
                ray_session.check_reachable(address)
