"""Start and end the driver, in its own process group, and ask Ray about its nodes through a helper process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from bigbatch.base import private_folder, processes
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.base.waits import HUNG_DRAIN_S
from bigbatch.cluster.node.ray_commands import ray_python


class Driver:
    """The command that uses the cluster; its output is the job's."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        # The caller handles FileNotFoundError and PermissionError: the user wrote the command.
        # A group of its own: kill() must reach whatever the command has started.
        self._process = subprocess.Popen(list(command), cwd=cwd, env=dict(env), start_new_session=True)
        self._killed = False

    def exit_code(self) -> int | None:
        """The exit code; None while it runs; 128 + n, as in shells, if signal n ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self) -> None:
        """Send SIGTERM to its group, so that it saves."""
        if self.exit_code() is None:
            processes.signal_group(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the rest of its group, only once: later another group may have its number."""
        if not self._killed:
            self._killed = True
            processes.signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()


class GcsWatch:
    """Watches Ray's living nodes, as its GCS knows them; see ``bigbatch.cluster.node.gcs``."""

    def __init__(self, env: Mapping[str, str], errors: Path) -> None:
        self.seen = (0, 0, 0)
        """The numbers of living nodes, of their CPUs and of their GPUs."""
        with errors.open("ab") as log:
            self._process = subprocess.Popen(
                [ray_python(), "-m", "bigbatch.cluster.node.gcs", "watch"],
                cwd=IMPORT_ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            nodes, cpus, gpus = map(int, line.split())
            self.seen = (nodes, cpus, gpus)

    def close(self) -> None:
        """End the helper process."""
        if self._process.returncode is None:  # else another process may have its number
            processes.signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()


def drain_in_ray(address: str, reason: str, env: Mapping[str, str]) -> None:
    """Ask Ray to place nothing more on the node at ``address``. This may fail: the node may be gone.

    Ray asks the node itself. A hung node does not answer, so the timeout is short.
    """
    _ask_gcs(["drain", reason, address], env, HUNG_DRAIN_S)


def forget_in_ray(address: str, reason: str, env: Mapping[str, str]) -> None:
    """Tell Ray that a node has ended, in the background: the process takes seconds to load Ray."""
    words, timeout_s = ["gone", reason, address], 30.0
    threading.Thread(target=_ask_gcs, args=(words, env, timeout_s), daemon=True).start()


def _ask_gcs(words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [ray_python(), "-m", "bigbatch.cluster.node.gcs", *words],
            cwd=IMPORT_ROOT,
            env=dict(env),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
        )


def driver_environment(ray: Mapping[str, str], folder: Path, tmp: Path) -> dict[str, str]:
    """The driver's environment, except the variables about its time (``watch.TimeLeft``).

    Args:
        ray: variables of every process of the cluster (``ray_commands.ray_environment``).
        folder, tmp: the job's folder on the shared file system, and its temporary one on this node.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # `python`: this one
    env = {
        **ray,
        "PATH": path,
        "BIGBATCH_JOB_FOLDER": str(folder),
        **private_folder.temporary_folder_variables(tmp, ray),
    }
    if env.get("BIGBATCH_CONTAINER"):  # Ray's sockets lie beside ``tmp``; a container sees only folders that are bound
        env["BIGBATCH_NODE_TMP"] = str(tmp.parent)
    return env
