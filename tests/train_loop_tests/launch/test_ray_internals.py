"""Private names of Ray: they are in two files, of one version of Ray alone, and without them all still works."""

import re
import signal
import subprocess
import sys
import threading
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from bigbatch.train_loop.launch import ray_internals as internals
from bigbatch.tune.plan.machine import Node, Share
from bigbatch.tune.search.capacity import Capacity
from bigbatch.tune.search.tuner import MemoryKill, PrunerScheduler, memory_kills_fail_trials
from bigbatch.tune.trials.cluster_view import ClusterView, NodeView, RayHead
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
OTHER = "2.99.0"


def test_no_other_file_touches_a_private_name_of_ray() -> None:
    files = [*product_files(), *(ROOT / "src" / "bigbatch").glob("*.py")]
    private = [file for file in files if any(map(PRIVATE.search, file.read_text().splitlines()))]
    assert {str(file.relative_to(ROOT)) for file in private} == ALLOWED


def test_the_installed_ray_is_the_one_that_the_package_asks_for_and_its_private_names_are_used() -> None:
    assert internals.uses_private_names() and internals.note_of_unused(internals.SEARCH_WITHOUT) is None
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    major, minor = internals.TESTED.split(".")
    assert f"ray[default,train,tune]>={internals.TESTED},<{major}.{int(minor) + 1}" in asked


@pytest.fixture
def without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Ray, in which each of the names may mean something else."""
    monkeypatch.setattr(ray, "__version__", OTHER)


@pytest.mark.usefixtures("without_names")
def test_of_another_ray_none_is_used_and_a_note_says_what_is_different() -> None:
    note = str(internals.note_of_unused(internals.SEARCH_WITHOUT))
    assert note.startswith(f"note: this is Ray {OTHER}") and all(words in note for words in internals.SEARCH_WITHOUT)
    assert "\n" not in note


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


@pytest.mark.usefixtures("without_names")
def test_without_them_ray_behaves_as_ray_does() -> None:
    from ray.job_config import JobConfig

    assert type(internals.own_path_only()) is JobConfig
    assert internals.is_preempted() is False
    assert internals.head_client("127.0.0.1:1") is None
    internals.finish_session(1.0)  # outside of a trial there is no session: it must not ask for one
    with internals.own_process_groups("forks"), internals.quick_start_of_trials():
        pass
    with internals.Dashboard().beside() as comes_later:
        assert not comes_later


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
    with dashboard.beside() as comes_later:
        node: Any = SimpleNamespace(webui_url="127.0.0.1:8265", start_api_server=Node.start_api_server)
        node.start_api_server(node, include_dashboard=True, raise_on_failure=True)
        assert comes_later and not dashboard.address.done()
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


@pytest.mark.usefixtures("without_names")
def test_without_them_a_trial_that_fits_nowhere_stays_in_the_queue() -> None:
    waiting = SimpleNamespace(
        trial_id="large", config={"worker_resources": {"CPU": 8.0}}, is_finished=lambda: False, status="PENDING",
        placement_group_factory=None,
    )  # fmt: skip
    heard: list[str] = []
    bridge: Any = SimpleNamespace(put_back=lambda *what: heard.append("put back"))
    controller: Any = SimpleNamespace(
        get_trials=lambda: [waiting], get_live_trials=lambda: [], stop_trial=lambda trial: heard.append("stopped")
    )
    capacity = Capacity(Share(1, 1, {"CPU": 8.0}), 8, nodes=lambda: {"n1": Node(4, 0, 2**34)})
    PrunerScheduler(bridge, capacity)._give_up_outgrown(controller)
    assert heard == []


@pytest.mark.usefixtures("without_names")
def test_without_them_tune_hears_of_a_memory_kill_as_before() -> None:
    from ray.air.execution._internal.actor_manager import RayActorManager

    before = RayActorManager._actor_task_failed
    with memory_kills_fail_trials():
        assert RayActorManager._actor_task_failed is before
    assert issubclass(MemoryKill, ray.exceptions.RayActorError)


@pytest.mark.usefixtures("without_names")
def test_without_its_own_client_ray_still_says_which_nodes_live(monkeypatch) -> None:
    node = {
        "NodeManagerHostname": "n1", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 4.0},
        "DeathReasonMessage": "",
    }  # fmt: skip
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    context = SimpleNamespace(gcs_address="10.0.0.1:1", get_job_id=lambda: "01")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert RayHead().ask() == ClusterView((NodeView("n1 (10.0.0.1)", True, {"CPU": 4.0}, {"CPU": 4.0}),))


def test_the_switch_uses_none_of_them(monkeypatch) -> None:
    monkeypatch.setenv(internals.SWITCH, "0")
    assert not internals.uses_private_names()
    note = str(internals.note_of_unused(internals.RUN_WITHOUT))
    assert note.startswith(f"note: {internals.SWITCH}=0, so no") and "search" not in note, "a full run says it too"
