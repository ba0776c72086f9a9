"""How Ray is started on a node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bigbatch.cluster.node import credentials, node_process, ray_commands


def test_ray_is_started_with_every_port_and_resource_given(tmp_path):
    share = ray_commands.NodeResources(4, 2, 10**9, 10**8)
    head = ray_commands.ray_start_command(
        "10.0.0.1", "10.0.0.1:1", ray_commands.ports_of("1", 0, head=True), share, tmp_path, {}
    )
    worker = ray_commands.ray_start_command(
        "10.0.0.2", "10.0.0.1:1", ray_commands.ports_of("1", 0, head=False), share, tmp_path, {}
    )
    assert "--head" in head and "--dashboard-host=127.0.0.1" in head and "--address=10.0.0.1:1" in worker
    for option in ("--num-cpus=4", "--num-gpus=2", "--memory=1000000000", "--object-store-memory=100000000"):
        assert option in head and option in worker


def test_metrics_are_off_unless_a_port_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "credential_variables", lambda *_: {})
    share, chosen = ray_commands.NodeResources(1, 0, 10**9, 10**8), ray_commands.ports_of("1", 0, head=True)
    for port in (None, 9400):
        command = ray_commands.ray_start_command("10.0.0.1", "10.0.0.1:1", chosen, share, tmp_path, {}, port)
        seen = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token", None, metrics=port is not None)
        assert [word for word in command if word.startswith("--metrics")] == [f"--metrics-export-port={port}"] * (
            port is not None
        )
        assert seen["RAY_enable_metrics_collection"] == ("0" if port is None else "1")
        assert seen["DASHBOARD_METRIC_PORT"] == seen["AUTOSCALER_METRIC_PORT"] == "-1"


def test_workers_are_as_urgent_as_a_strangers_job_on_the_same_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "15")
    env = ray_commands.ray_environment("10.0.0.1:1", tmp_path / "token", None)
    assert env["RAY_worker_niceness"] == "0"


def test_a_node_whose_metrics_port_is_taken_starts_without_metrics(capsys):
    step = node_process.NodeProcess.__new__(node_process.NodeProcess)
    step._name = "n1"
    with socket.create_server(("0.0.0.0", 0)) as server:
        step._metrics_port = server.getsockname()[1]
        assert step._free_metrics_port() is None
        assert (
            capsys.readouterr().out
            == f"port {step._metrics_port} is taken on n1: it shows no metrics (--metrics-port)\n"
        )
    assert step._free_metrics_port() == step._metrics_port


def test_rays_temporary_folder_is_the_jobs_and_the_users_own_is_handed_on(tmp_path, monkeypatch):
    """A stand-in for the interpreter writes down the variables that Ray's processes inherit."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\nenv > "$SEEN"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("BIGBATCH_NODE_PYTHON", str(stand_in))
    monkeypatch.setattr(credentials, "credential_variables", lambda *_: {})
    for own in ("/local/user", None):
        monkeypatch.setenv("SEEN", str(tmp_path / f"seen-{own is None}"))
        monkeypatch.setenv("TMPDIR", own) if own else monkeypatch.delenv("TMPDIR", raising=False)
        step = node_process.NodeProcess.__new__(node_process.NodeProcess)
        step._gcs, step._ip, step._record, step._metrics_port = None, "10.0.0.1", tmp_path, None
        step._share, step._job_id, step._name = ray_commands.NodeResources(1, 0, 10**9, 10**8), "1", "n1"
        assert step._start_ray(tmp_path, ray_commands.ports_of("1", 0, head=True), None).wait() == 0
        seen = dict(line.split("=", 1) for line in Path(os.environ["SEEN"]).read_text().splitlines() if "=" in line)
        assert (seen["TMPDIR"], seen["BIGBATCH_USER_TMPDIR"]) == (str(tmp_path), own or "")
