"""Private names of Ray: they are in two files, the installed Ray has them, and a Ray that lacks some still works."""

import importlib
import re
import signal
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from bigbatch.train_loop.config import ConfigError
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
    "train_loop/launch/ray_session.py",  # passes two options of ray.init that ray_internals has checked
    "tune/trials/trial_run.py",  # sets __mixins__, for the Ray that ray_internals has checked
}
OTHER = "2.99.0"
NAMES = [(use, name) for use in internals.FOR_SEARCHES for name in use.names]


def take_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the installed Ray be another one that lacks a name, as if a release had renamed it."""
    monkeypatch.setattr(ray, "__version__", OTHER)
    module, _, path = name.partition(":")
    *owner, last = path.split(".")
    if owner:  # what __init__ sets, and parameters, cannot be taken out of an object
        monkeypatch.setattr(importlib.import_module(module), owner[0], type(owner[0], (), {}))
    else:
        monkeypatch.delattr(importlib.import_module(module), last)


def test_no_other_file_touches_a_private_name_of_ray() -> None:
    files = [*product_files(), *(ROOT / "src" / "bigbatch").glob("*.py")]
    private = [file for file in files if any(map(PRIVATE.search, file.read_text().splitlines()))]
    assert {str(file.relative_to(ROOT)) for file in private} == ALLOWED


def test_the_installed_ray_has_all_of_them_and_is_the_one_that_the_package_asks_for() -> None:
    assert internals.missing_names([name for _, name in NAMES]) == []
    assert internals.missing_names([internals.PRIVATE_FOLDER, internals.METRICS_PORT]) == []
    assert internals.note_of_missing(internals.FOR_SEARCHES) is None
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    major, minor = internals.TESTED.split(".")
    assert f"ray[default,train,tune]>={internals.TESTED},<{major}.{int(minor) + 1}" in asked
    assert ray.__version__.startswith(f"{internals.TESTED}.")


def test_the_tested_ray_is_not_searched_for_its_names_because_that_loads_torch(monkeypatch) -> None:
    monkeypatch.setattr(internals, "missing_names", lambda names: pytest.fail("searched"))
    assert all(map(internals.has, internals.FOR_SEARCHES))


@pytest.mark.parametrize(("use", "name"), NAMES, ids=[name.rpartition(":")[2] for _, name in NAMES])
def test_each_missing_name_is_noticed_and_the_note_says_what_is_different(use, name, monkeypatch) -> None:
    take_away(name, monkeypatch)
    assert not internals.has(use)
    note = internals.note_of_missing(internals.FOR_SEARCHES)
    owner = name.rpartition(":")[2].partition(".")[0]  # all that is missing of a class is counted, and one is named
    assert note is not None and owner in note and use.without in note and OTHER in note


def test_a_module_that_is_gone_is_a_missing_name() -> None:
    gone = ["ray.no_such_module:Name", "ray:no_such_name"]
    assert internals.missing_names(gone) == gone


@pytest.fixture
def without_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that lacks a name of each use. Its modules are loaded first: they import these names from each other."""
    assert not internals.missing_names([name for use in internals.FOR_SEARCHES for name in use.names])
    for use in internals.FOR_SEARCHES:
        take_away(use.names[0], monkeypatch)
    internals._has_preemption.cache_clear()
    yield
    internals._has_preemption.cache_clear()


def test_sigterm_keeps_its_handler_while_ray_starts() -> None:
    """Ray's own raises SystemExit: the search had crashed, and did not say how to go on."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with internals.own_process_groups(), pytest.raises(ValueError, match="must not be provided"):
            ray.init(address="127.0.0.1:1", num_cpus=1, configure_logging=False)
        assert signal.getsignal(signal.SIGTERM) is before
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

    with memory_kills_fail_trials():
        assert not hasattr(RayActorManager, "_actor_task_failed")
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
    assert not any(map(internals.has, internals.FOR_SEARCHES))
    note = str(internals.note_of_missing(internals.FOR_TRAINING))
    assert note.startswith(f"note: {internals.SWITCH}=0, so no") and "search" not in note, "a full run says it too"


@pytest.mark.parametrize(
    ("with_metrics", "init", "refused"),
    [
        (False, lambda _temp_dir=None: None, None),
        (True, lambda _temp_dir=None: None, r"_metrics_export_port=….*Leave --metrics-port out, or pip install"),
        (False, lambda: None, r"_temp_dir=….*Write pip install 'ray\[default,train,tune\]==2\.60"),
    ],
)
def test_a_ray_that_would_be_unsafe_is_refused_in_one_line(with_metrics, init, refused, monkeypatch) -> None:
    monkeypatch.setattr(ray, "init", init)
    if refused is None:
        internals.refuse_unsafe(with_metrics)
        return
    with pytest.raises(ConfigError, match=refused) as met:
        internals.refuse_unsafe(with_metrics)
    assert "\n" not in str(met.value)
