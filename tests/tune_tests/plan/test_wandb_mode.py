"""``--wandb online`` and ``auto`` where W&B's server answers, and where it does not."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from bigbatch.cluster.host.allocation import PLANNED_NODES
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch.wandb_run import reachable_mode
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from helpers.wandb_server import WandbServer


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nothing listens, and a key for it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_with_a_server_both_are_online(monkeypatch):
    with WandbServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        assert [reachable_mode(mode) for mode in ("online", "auto")] == ["online", "online"]


def test_without_a_network_online_is_refused_at_the_start_and_auto_goes_offline(no_server, tmp_path, capsys):
    options = SearchOptions(space="smoke", output=str(tmp_path / "runs"), trials=1, wandb="online")
    with pytest.raises(ConfigError, match=r"--wandb online needs 127\.0\.0\.1:\d+, which cannot be reached") as refused:
        make_plan(options)
    assert "\n" not in str(refused.value) and "Write --wandb auto" in str(refused.value)
    assert not (tmp_path / "runs").exists()
    assert make_plan(replace(options, wandb="auto")).wandb == "offline"
    assert capsys.readouterr().err.count("\n") == 1


def test_the_other_modes_ask_nobody(no_server, capsys):
    assert [reachable_mode(mode) for mode in ("disabled", "offline")] == ["disabled", "offline"]
    assert capsys.readouterr().err == ""


def test_auto_without_a_key_is_offline(no_server, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert reachable_mode("auto") == "offline"
    assert "no key is set" in capsys.readouterr().err


def test_a_check_for_a_job_elsewhere_does_not_judge_this_network(no_server, monkeypatch):
    monkeypatch.setenv(PLANNED_NODES, "1x8c0g")
    assert [reachable_mode(mode) for mode in ("online", "auto")] == ["online", "auto"]
