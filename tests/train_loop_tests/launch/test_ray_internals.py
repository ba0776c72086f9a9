"""Private names of Ray: they are in two files, of one version of Ray alone."""

import re
import signal
import subprocess
import sys
import threading
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch import ray_internals as internals
from helpers.paths import ROOT, product_files

PRIVATE = re.compile(r"ray(\.\w+)*\._\w|controller\._|get_session\(|__mixins__|_temp_dir=|_metrics_export_port")
ALLOWED = {
    "train_loop/launch/ray_internals.py",
    "train_loop/launch/inline_controller.py",
    "cluster/node/gcs.py",  # runs alone, and may not import it
    "cluster/node/ray_start_hook.py",  # does nothing where it is not there
    "train_loop/launch/ray_session.py",  # passes two options of ray.init, which refuses what it does not know
    "tune/trials/trial_run.py",  # sets __mixins__, for the Ray that ray_internals has checked
}


def test_no_other_file_touches_a_private_name_of_ray() -> None:
    files = [*product_files(), *(ROOT / "src" / "bigbatch").glob("*.py")]
    private = [file for file in files if any(map(PRIVATE.search, file.read_text().splitlines()))]
    assert {str(file.relative_to(ROOT)) for file in private} == ALLOWED


def test_the_installed_ray_is_the_one_that_the_package_asks_for_and_another_is_refused(monkeypatch) -> None:
    internals.check_ray()
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    major, minor = internals.TESTED.split(".")
    assert f"ray[default,train,tune]>={internals.TESTED},<{major}.{int(minor) + 1}" in asked
    monkeypatch.setattr(internals.metadata, "version", lambda name: "2.99.0")
    with pytest.raises(ConfigError, match=r"Ray must be 2\.60: .*; got 2\.99\.0\. Run `pip install "):
        internals.check_ray()


def test_the_calls_a_second_stop_growing_with_the_workers() -> None:
    assert [internals.poll_interval_s(n) for n in (1, 32, 64, 256, 640, 4096)] == [0.1, 0.1, 0.2, 0.8, 2.0, 2.0]


def test_sigterm_keeps_its_handler_while_ray_starts() -> None:
    """Ray's own raises SystemExit: the search had crashed, and did not say how to go on."""
    from ray._private import utils

    before, set_handler = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    try:
        with internals.own_process_groups():
            utils.set_sigterm_handler(lambda *_: None)  # as ray.init and its Node do
            assert signal.getsignal(signal.SIGTERM) is before
        assert utils.set_sigterm_handler is set_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("error", [None, RuntimeError("no free port")])
def test_the_node_starts_while_the_dashboard_does_and_its_error_is_told(error, monkeypatch) -> None:
    from ray._private.node import Node

    node_starts = threading.Event()

    def start(node: Any, *, include_dashboard: bool, raise_on_failure: bool) -> None:
        assert node_starts.wait(60)
        if error:
            raise error

    monkeypatch.setattr(Node, "start_api_server", start)
    dashboard = internals.Dashboard()
    with dashboard.beside():
        node: Any = SimpleNamespace(webui_url="127.0.0.1:8265", start_api_server=Node.start_api_server)
        node.start_api_server(node, include_dashboard=True, raise_on_failure=True)
        assert not dashboard.address.done()
        node_starts.set()
    assert Node.start_api_server is start
    assert dashboard.address.exception(60) is error
    assert error or dashboard.address.result() == "127.0.0.1:8265"
    dashboard.leave(lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_the_dashboard_lives_until_ray_ends(monkeypatch) -> None:
    """Ray asks the kernel to end its processes with their parent: with the thread that started them."""
    from ray._private import utils
    from ray._private.node import Node

    made: list[subprocess.Popen[bytes]] = []

    def start(node: Any) -> None:
        made.append(subprocess.Popen(["sleep", "60"], preexec_fn=utils.set_kill_on_parent_death_linux))

    monkeypatch.setattr(Node, "start_api_server", start)
    dashboard = internals.Dashboard()
    with dashboard.beside():
        Node.start_api_server(SimpleNamespace(webui_url="127.0.0.1:8265"))
    assert dashboard.address.result(60)
    with pytest.raises(subprocess.TimeoutExpired):
        made[0].wait(0.5)
    dashboard.leave(lambda: None)
    assert made[0].wait(60) == -signal.SIGKILL


def test_ray_may_end_before_its_dashboard_answers(monkeypatch) -> None:
    from ray._private.node import Node

    ended = threading.Event()

    def start(node: Any) -> None:
        assert ended.wait(60)
        raise RuntimeError("the dashboard's process has ended")

    monkeypatch.setattr(Node, "start_api_server", start)
    dashboard, threads = internals.Dashboard(), threading.active_count()
    with dashboard.beside():
        Node.start_api_server(SimpleNamespace())
    dashboard.leave(ended.set)
    assert dashboard.address.result() == "" and threading.active_count() == threads
