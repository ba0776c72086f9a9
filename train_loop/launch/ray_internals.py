"""The private names of Ray that this package uses.

Ray may rename them, or change their meaning, without notice. So only this file and ``inline_controller.py`` use them (a
test checks this), and only Ray ``TESTED`` is accepted.

Importing this file does not load Ray: Ray's core reads the variables of its authentication when it is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from importlib import metadata
from typing import Any

from bigbatch.base import fork_server
from bigbatch.train_loop.config import ConfigError

DASHBOARD_FILE, DASHBOARD_NICENESS = "dashboard.py", 10
"""Ray's worker processes have niceness 15."""
LEAVE_S = 10.0
TESTED = "2.60"
"""The Ray with which all of this was tested, as in ``pyproject.toml``."""


def check_ray() -> None:
    """Raise ConfigError with a Ray of another minor version than ``TESTED``."""
    found = metadata.version("ray")
    if not found.startswith(f"{TESTED}."):
        raise ConfigError(
            f"Ray must be {TESTED}: with another version private names may mean something else; got {found}. "
            f"Run `pip install 'ray[default,train,tune]~={TESTED}.0'`."
        )


def read_variables_again() -> None:
    """Make Ray's core read its settings and token from the variables again, if this process has loaded it already: it
    read them when a user's file imported Ray."""
    if "ray._raylet" in sys.modules:
        core: Any = importlib.import_module("ray._raylet")
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


# Workers and nodes


def is_preempted() -> bool:
    """Whether Ray has told this worker that a node of its run will be removed.

    Ray tells each rank. Its public call would be a collective.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context().preemption_context.preemption_info is not None


@contextlib.contextmanager
def own_process_groups(forks: str = "") -> Iterator[None]:
    """Within the block, processes that Ray starts lead their own process groups, and SIGTERM keeps its handler.

    A terminal's Ctrl-C or hang-up, ``timeout`` and ``kill -- -PGID`` signal the whole group of the driver.
    Otherwise Ray's processes would die before trials have saved. They still end with the driver: the kernel signals
    them. Ray's own handler would end the driver like a crash while Ray starts, which can take half a minute.

    Args:
        forks: the socket of the server that starts them (``base/fork_server.py``); empty: Ray starts interpreters.
    """
    from ray._private import services, utils

    popen, replace_handler = services.ConsolePopen, utils.set_sigterm_handler

    def start(command: list[str], *args: object, **more: object) -> Any:
        if forks:
            command = fork_server.instead_of_python(command, forks)
        process = popen(command, *args, **more, process_group=0)
        if DASHBOARD_FILE in map(os.path.basename, command):  # the first trials start at the same time
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + DASHBOARD_NICENESS)
        return process

    services.ConsolePopen, utils.set_sigterm_handler = start, lambda _handler: None
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, replace_handler


class Dashboard:
    """Ray's dashboard, which takes seconds to start. By itself, Ray starts the node only when the dashboard answers."""

    def __init__(self) -> None:
        self.address: Future[str] = Future()
        """Without ``http://``, empty without a dashboard; or the error of its start."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Within the block, Ray starts the node at once; ``address`` gets the dashboard's later."""
        from ray._private.node import Node

        start = Node.start_api_server

        def run(node: Any, how: dict[str, Any]) -> None:
            with contextlib.suppress(InvalidStateError):  # Ray ends already
                try:
                    start(node, **how)
                    self.address.set_result(node.webui_url)
                except Exception as error:
                    self.address.set_exception(error)
            self._over.wait()  # when the thread that started it ends, the kernel ends a process of Ray's

        def begin(node: Any, **how: Any) -> None:
            self._thread = threading.Thread(target=run, args=(node, how), daemon=True, name="dashboard")
            self._thread.start()

        Node.start_api_server = begin
        try:
            yield
        finally:
            Node.start_api_server = start

    def leave(self, end: Callable[[], None]) -> None:
        """Before Ray ends: ``end()`` the dashboard's process if it does not answer yet, and wait for the thread.

        The thread asks Ray's head. If the head is gone for a minute, Ray's core would end this process.
        """
        if self._thread is None:
            return
        with contextlib.suppress(InvalidStateError):
            self.address.set_result("")
            end()
        self._over.set()
        deadline = time.monotonic() + LEAVE_S
        while self._thread.is_alive() and time.monotonic() < deadline:  # else the head is gone already
            self._thread.join(0.5)
            end()  # it may just have been started


def own_path_only() -> object:
    """A ``JobConfig`` with which workers import only from PYTHONPATH and the installation.

    Ray puts the driver's current folder and its script's folder first on the path of each worker. A ``tune.py`` or
    ``torch.py`` there would replace ours or the library. Ray leaves both folders out if the job has its own working
    folder. A private method answers that question.
    """
    from ray.job_config import JobConfig

    class OwnPathOnly(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return OwnPathOnly()


# Ray Tune


def unstage(controller: Any, trial: Any) -> None:
    """Remove a trial that has no place yet from the trials for which Tune keeps processes.

    ``TuneController.stop_trial`` does not do it.
    """
    if trial in controller._staged_trials:
        controller._staged_trials.remove(trial)
        controller._actor_cache.decrease_max(trial.placement_group_factory)


@contextlib.contextmanager
def memory_kills_as(error_of: Callable[[str], Exception]) -> Iterator[None]:
    """Within the block, Tune gets ``error_of(message)`` if Ray ended a trial's process for lack of memory.

    Without this, Tune (Ray 2.60) would end the whole search.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError

    before = RayActorManager._actor_task_failed

    @functools.wraps(before)
    def failed(self: Any, tracked_actor_task: object, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = error_of(str(exception))
        before(self, tracked_actor_task=tracked_actor_task, exception=exception)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = before


@contextlib.contextmanager
def quick_start_of_trials() -> Iterator[None]:
    """Within the block, Tune starts trials in the environment of the job, and loads only what it uses.

    Tune would give each trial the driver's environment variables, which the job has already, and so start a new process
    for each. It would also load W&B, only to count its users for Ray's telemetry, which is off.
    """
    import ray
    from ray.air._internal import usage
    from ray.tune.execution.class_cache import _ActorClassCache

    def get(self: Any, trainable_cls: type) -> Any:
        if trainable_cls not in self._cache:
            self._cache[trainable_cls] = ray.remote(trainable_cls)
        return self._cache[trainable_cls]

    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (usage, "tag_callbacks", lambda _callbacks: False),
            (_ActorClassCache, "get", get),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        yield


def finish_session(timeout_s: float) -> None:
    """Wait until the function of this process's trial has ended."""
    from ray.train._internal.session import get_session

    get_session().finish(timeout=timeout_s)


# Ray Train

POLL_INTERVAL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
"""Ray's variable, which a controller reads when it is made and hands on to a controller in a process of its own."""


def poll_interval_s(workers: int) -> float:
    """Seconds between two polls of all workers of a run. A report waits for the next one.

    32 workers at 0.1 s make 320 calls a second. For more workers the interval grows, up to Ray's own 2 s, so that this
    number stays.
    """
    return min(0.1 * max(workers / 32, 1.0), 2.0)


def set_poll_interval(workers: int) -> None:
    """Let the controllers that this process makes from now on poll so many workers at the right interval."""
    os.environ[POLL_INTERVAL] = str(poll_interval_s(workers))
