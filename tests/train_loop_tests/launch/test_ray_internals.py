"""Private names of Ray: they are in two files, of one version of Ray alone."""

import re
import signal
import tomllib

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


def test_a_path_of_python_with_which_ray_starts_no_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial waited six minutes for one."""
    monkeypatch.setattr(internals.sys, "executable", "/home/a/My Projects/venv/bin/python")
    with pytest.raises(ConfigError, match="Python's path must have no space; got '/home/a/My Projects/"):
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
