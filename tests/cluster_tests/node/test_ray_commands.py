"""How Ray is started on a node: its block of ports, its token, its options and variables."""

import os
import socket
from pathlib import Path

from bigbatch.cluster.node import node_process, ray_commands
from helpers.processes import program

PORTS = {True: ray_commands.NodePorts(*range(1, 9)), False: ray_commands.NodePorts(0, 0, 0, *range(11, 16))}


def test_ray_is_started_with_every_port_and_resource_given(tmp_path):
    share = ray_commands.NodeResources(4, 2, 10**9, 10**8)
    head, worker = (
        ray_commands.ray_start_command(ip, "10.0.0.1:1", PORTS[ip == "10.0.0.1"], share, tmp_path, "n1")
        for ip in ("10.0.0.1", "10.0.0.2")
    )
    assert "--head" in head and "--dashboard-host=127.0.0.1" in head and "--address=10.0.0.1:1" in worker
    for option in ("--num-cpus=4", "--num-gpus=2", "--memory=1000000000", "--object-store-memory=100000000"):
        assert option in head and option in worker


def test_rays_metrics_which_need_no_token_are_off(tmp_path):
    seen = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token")
    assert seen["RAY_enable_metrics_collection"] == "0"
    assert seen["DASHBOARD_METRIC_PORT"] == seen["AUTOSCALER_METRIC_PORT"] == "-1"


def test_a_users_python_that_ray_does_not_start_with_stays_out_of_a_node(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    env = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token")
    assert {"PYTHONWARNINGS", "PYTHONOPTIMIZE"}.isdisjoint(env) and env["PYTHONHASHSEED"] == "7"


def test_workers_are_as_urgent_as_a_strangers_job_on_the_same_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "15")
    env = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token")
    assert env["RAY_worker_niceness"] == "0"


def test_workers_sum_over_the_interface_that_the_doctor_has_tried(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "BIGBATCH_INTERFACE"):
        monkeypatch.delenv(name, raising=False)
    assert not [name for name in ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token") if "IFNAME" in name]
    monkeypatch.setenv("BIGBATCH_INTERFACE", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib1")  # the user's own
    env = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token")
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib1")


def test_rays_temporary_folder_is_the_jobs_and_the_users_own_is_handed_on(tmp_path, monkeypatch):
    """A stand-in for the interpreter writes down the variables that Ray's processes inherit."""
    monkeypatch.setenv("BIGBATCH_NODE_PYTHON", str(program(tmp_path / "python", 'env > "$SEEN"')))
    for own in ("/local/user", None):
        monkeypatch.setenv("SEEN", str(tmp_path / f"seen-{own is None}"))
        monkeypatch.setenv("TMPDIR", own) if own else monkeypatch.delenv("TMPDIR", raising=False)
        step = node_process.NodeProcess.__new__(node_process.NodeProcess)
        step._is_head, step._ip, step._record = True, "10.0.0.1", tmp_path
        step._share, step._job_id, step._name = ray_commands.NodeResources(1, 0, 10**9, 10**8), "1", "n1"
        assert step._start_ray(tmp_path, PORTS[True]).wait() == 0
        seen = dict(line.split("=", 1) for line in Path(os.environ["SEEN"]).read_text().splitlines() if "=" in line)
        assert (seen["TMPDIR"], seen["BIGBATCH_USER_TMPDIR"]) == (str(tmp_path), own or "")


def test_ports_are_free_and_below_the_ephemeral_range(monkeypatch):
    head, worker = ray_commands.free_ports(head=True), ray_commands.free_ports(head=False)
    assert len(head.used()) == 8 and len(worker.used()) == 5 and 20000 <= min(head.used()) < max(head.used()) < 30000
    monkeypatch.setattr(ray_commands, "is_free", lambda port: False)
    assert ray_commands.free_ports(head=True) is None


def test_a_port_on_which_another_program_listens_is_taken():
    with socket.socket() as neighbour:
        neighbour.bind(("127.0.0.1", 0))
        neighbour.listen()
        assert not ray_commands.is_free(neighbour.getsockname()[1])


def test_a_token_is_fresh_and_private(tmp_path):
    first = ray_commands.make_token(tmp_path)
    text = first.read_text()
    assert len(text) == 64 and first.stat().st_mode & 0o777 == 0o600
    assert ray_commands.make_token(tmp_path).read_text() != text
    assert text not in str(ray_commands.ray_environment("10.0.0.1:1", first))
