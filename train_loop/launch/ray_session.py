"""Ray for one search or one run: start a private local cluster that leaves nothing behind, or join a running one.

The local cluster has token authentication, its own folder with mode 0700 for Ray's files, a dashboard on loopback, and
a ``RAY_ADDRESS`` that is known before the first process starts. It is a child of this process, ends with it (also after
``kill -9``) and touches no other cluster on the machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO

from bigbatch.base import fork_server, private_folder, processes
from bigbatch.base.atomic_files import PRIVATE, write_text
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.base.waits import RESET_S
from bigbatch.cluster.host.network import no_proxy_variables
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import RayStartError
from bigbatch.train_loop.host.disk_space import LogFile
from bigbatch.train_loop.launch.ray_internals import (
    DASHBOARD_FILE,
    POLL_INTERVAL,
    Dashboard,
    check_ray,
    own_path_only,
    own_process_groups,
    poll_interval_s,
    read_variables_again,
)

PREFIX = "bb-ray-"
OBJECT_STORE_BYTES = 200 * 2**20  # configurations and epoch records: kilobytes
START_ATTEMPTS = 3
PROBE_S = 5.0

SEARCH_ENV = {
    POLL_INTERVAL: str(poll_interval_s(1)),  # with more workers each run sets it
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the search has its own, which saves the study
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": f"{RESET_S:.0f}",
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # trials start side by side; the bridge limits their number
    "TUNE_WARN_THRESHOLD_S": "30",
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # nobody reads Ray's experiment state: written at the start and the end
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed",  # we say it ourselves, in a line
    "PYTHONSAFEPATH": "1",  # `python -c`, which starts spawned processes, must not look into the current folder
}
NO_METRICS = {"RAY_enable_metrics_collection": "0", "DASHBOARD_METRIC_PORT": "-1", "AUTOSCALER_METRIC_PORT": "-1"}
"""Turns off Ray's three metrics servers, which ask for no token. Two have no switch, so they get an impossible port."""
OTHER_CLUSTER_VARIABLES = ("RAY_NAMESPACE", "RAY_TMPDIR", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_REDIS_ADDRESS")
"""Settings of another cluster of the user. Ray would apply them to this one."""


@dataclass(frozen=True)
class RayConnection:
    """A cluster that can be used."""

    address: str
    dashboard: Future[str]
    """Its address without protocol, when it answers; empty if there is none."""
    token_path: str | None
    local: bool

    def tell_dashboard(self, say: Callable[[str], None]) -> None:
        """Say where the dashboard is, when it answers: now, or later from a thread."""

        def tell(dashboard: Future[str]) -> None:
            if error := dashboard.exception():
                reason = textwrap.shorten(reason_of(error), 160, placeholder=" …").rstrip(".")  # may be a line of a log
                say(f"note: Ray's dashboard did not start: {reason}. Ray works without it.")
            elif url := dashboard.result():
                token = f" (token in {self.token_path})" if self.token_path else ""
                say(f"Ray dashboard: http://{url}{token}")

        self.dashboard.add_done_callback(tell)


class LocalRay:
    """A private Ray cluster on this machine, as a context manager.

    Args:
        cpus, gpus: what the cluster may use (the allocation's, not the host's).
        log_file: Ray's own messages in this process go there.

    Raises:
        ConfigError: the temporary folder's path is too long for Unix sockets.
        RayStartError: Ray did not start after a few attempts; its logs are kept beside ``log_file``.
    """

    def __init__(self, cpus: int, gpus: int, log_file: Path) -> None:
        self._cpus, self._gpus, self._log_file = cpus, gpus, log_file
        self._server: subprocess.Popen[bytes] | None = None
        self._dashboard = Dashboard()
        self._saved_env: dict[str, str | None] = {}
        self.folder: Path | None = None

    def __enter__(self) -> RayConnection:
        check_ray()
        remove_stale_folders()
        self.folder, self._owner = private_ray_folder()
        try:
            return self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut_down()
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
        if self.folder is not None:
            processes.end_processes_of(self.folder)
            private_folder.remove_folder(self.folder)
            self._owner.close()
        self._set_env(self._saved_env)

    def _start(self) -> RayConnection:
        assert self.folder is not None
        token = self.folder / "token"
        write_text(token, secrets.token_hex(32), mode=PRIVATE)
        self._set_env(
            {
                **SEARCH_ENV,
                **NO_METRICS,
                "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # nobody drains a private cluster
                "RAY_prestart_worker_first_driver": "0",  # else one process for each core, even if trials need fewer
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(token),
                "RAY_AUTH_TOKEN": None,
                "PYTHONPATH": python_path(),
                **dict.fromkeys((*OTHER_CLUSTER_VARIABLES, *processes.NOT_FOR_RAY)),
                **private_folder.temporary_folder_variables(self.folder),
            }
        )
        read_variables_again()
        import ray  # only now: its core reads the authentication's variables when it is loaded

        last = ""
        for _ in range(START_ATTEMPTS):
            port = free_port()
            # Ray replaces a loopback address by the host's own, so ask Ray for that one.
            host = ray.util.get_node_ip_address()
            address = f"{host}:{port}"
            self._set_env({"RAY_ADDRESS": address, "RAY_GCS_SERVER_PORT": str(port)})
            self._set_env(no_proxy_variables([host], os.environ))
            try:
                return self._init(address, token)
            except Exception as error:  # another program took the port; Ray also raises bare Exceptions
                last = reason_of(error)
                self._shut_down()
        kept = self._log_file.with_name("ray-start")
        logs = self.folder / "r" / "session_latest" / "logs"
        with contextlib.suppress(OSError):  # there are none, or there is no room for them
            shutil.copytree(logs, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        raise RayStartError(f"Ray did not start: {last.rstrip('.')}. Its logs: {kept}")

    def _init(self, address: str, token: Path) -> RayConnection:
        import ray

        send_ray_logs_to(self._log_file)
        self._dashboard = Dashboard()
        with own_process_groups(self._fork_server()), self._dashboard.beside():
            context = ray.init(
                address="local",
                num_cpus=self._cpus,
                num_gpus=self._gpus,
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                job_config=own_path_only(),
                runtime_env=worker_python() or None,
                _temp_dir=str(self.folder / "r") if self.folder else None,
            )
        send_ray_logs_to(self._log_file)  # again: starting Ray sets its loggers up anew
        started = context.address_info["gcs_address"]
        if started != address:
            raise RuntimeError(f"Ray listens on {started} instead of {address}")
        return RayConnection(address, self._dashboard.address, str(token), local=True)

    def _shut_down(self) -> None:
        import ray

        try:
            if self.folder is not None:
                self._dashboard.leave(partial(processes.end_processes_of, self.folder, DASHBOARD_FILE))
        finally:
            ray.shutdown()

    def _fork_server(self) -> str:
        """The socket of the server that starts this cluster's processes for work; empty if Ray starts them itself."""
        if worker_python() or sys.platform != "linux":
            return ""
        assert self.folder is not None
        path = self.folder / "ray-forks"
        self._server = self._server or fork_server.launch(str(path))
        return str(path)

    def _set_env(self, values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            self._saved_env.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class JoinedRay:
    """A running cluster (``--address``): used, never stopped.

    Raises:
        ConfigError: Ray is of another version; no cluster answers at the address, or it refuses the token.
    """

    def __init__(self, address: str, log_file: Path) -> None:
        self._address, self._log_file = address, log_file

    def __enter__(self) -> RayConnection:
        check_ray()
        os.environ.update(SEARCH_ENV)  # before Ray is loaded, which reads some of them then
        import ray

        send_ray_logs_to(self._log_file)
        # Settings of this project and of Ray Train, on which driver and workers must agree.
        agreed = {name: value for name, value in os.environ.items() if name.startswith(("BIGBATCH_", "RAY_TRAIN_"))}
        try:
            with own_process_groups():
                context = ray.init(
                    address=self._address,
                    log_to_driver=False,
                    configure_logging=False,
                    job_config=own_path_only(),
                    runtime_env={
                        "env_vars": {**SEARCH_ENV, **agreed, "PYTHONPATH": python_path()},
                        **worker_python(),
                    },
                )
        except Exception as error:  # Ray raises whatever its transport raised
            raise ConfigError(
                f"--address must name a running Ray cluster; got {self._address!r}: {reason_of(error).rstrip('.')}. "
                "Start one, set RAY_AUTH_TOKEN_PATH to its token, or write --address local."
            ) from None
        send_ray_logs_to(self._log_file)  # again: joining Ray sets its loggers up anew
        dashboard = Future[str]()
        dashboard.set_result(context.dashboard_url or "")
        return RayConnection(
            context.address_info["gcs_address"],
            dashboard,
            os.environ.get("RAY_AUTH_TOKEN_PATH"),
            local=False,
        )

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()


def reason_of(error: BaseException) -> str:
    """An error of Ray in one line: its first one, or the last one where the first only announces lines of a log."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return others[-1] if others and first.endswith(":") else first


def check_reachable(address: str) -> None:
    """Raise ConfigError if nothing listens at ``address``: Ray itself would try for minutes."""
    target = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if not target or target == "auto":  # Ray looks for a cluster of this machine
        return
    host, _, port = target.rpartition("://")[2].rpartition(":")
    reason = "it has no port"
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
            return
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "no answer"
    raise ConfigError(
        f"--address must be auto or HOST:PORT of a running Ray cluster; got {target!r}: {reason}. "
        "Start one, or write --address local."
    )


def worker_python() -> dict[str, str]:
    """The part of Ray's runtime environment that workers need if this Python's path needs quotes, e.g. for a space.

    Ray passes that path to a shell, unquoted, for each process that has variables of its own, such as Tune's trials.
    Otherwise this is empty: then workers use the job's own environment, and start as forks.
    """
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


def python_path() -> str:
    """PYTHONPATH for workers: the folder of the package ``bigbatch`` first, without the folder of ``tune/run.py``."""
    rest = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != IMPORT_ROOT]
    return os.pathsep.join([str(IMPORT_ROOT), *rest])


def private_ray_folder() -> tuple[Path, IO[str]]:
    """A private folder for this search's Ray, and its owner's file, which must stay open.

    Raises ConfigError if there is no place for it, or if Ray may not start enough processes.
    """
    try:
        processes.check_limits(processes.HEAD_THREADS)
        return private_folder.make_private_folder(PREFIX, _bases())
    except OSError as error:
        raise ConfigError(str(error)) from None


def _bases() -> list[str]:
    with contextlib.suppress(OSError):  # no folder can be written: the refusal names them
        return list(dict.fromkeys((tempfile.gettempdir(), "/tmp")))
    return ["/tmp"]


def remove_stale_folders() -> None:
    """Remove the folders of this user's searches that were killed before they could clean up."""
    private_folder.remove_stale(pattern=f"{PREFIX}{private_folder.TAIL}", candidates=_bases())


def free_port() -> int:
    """A port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send_ray_logs_to(path: Path) -> None:
    """Send messages of Ray's libraries in this process to a file, not into the live table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = LogFile(path, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("ray", "optuna", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("ray."):
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
    logging.captureWarnings(True)
