"""Slurm's jobs in the virtual cluster: their states, as its commands say them."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from virtual_config import CONTROLLER

PATIENCE_S = 120.0
"""For what takes seconds, on a machine that is busy with something else. Only who waits in vain waits so long."""


class ClusterError(RuntimeError):
    """The cluster does not do what it was asked to; the message holds what its logs say."""


class CommandFailed(subprocess.CalledProcessError):
    """A command on a node ended with an error; says what it printed."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout}\n{self.stderr}"


class Jobs(ABC):
    """What can be asked of a cluster's jobs by whoever can run commands on its controller."""

    @abstractmethod
    def run(self, node: str, *cmd: Any, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a node. Raises CommandFailed."""

    @abstractmethod
    def logs(self) -> str:
        """The end of every log, for error messages."""

    def state(self, job_id: str) -> str:
        """``PENDING``, ``RUNNING``, ``COMPLETED``…, of the first component where there are several."""
        if not job_id:
            raise ValueError("job_id must not be empty: Slurm would answer for all jobs.")
        return self._question("squeue", "-t", "all", "-h", "-j", job_id, "-o", "%T").split()[0]

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of ``scontrol show job`` whose values hold no blank."""
        text = self._question("scontrol", "-o", "show", "job", job_id)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def _question(self, *cmd: str) -> str:
        """What the controller answers; asked again where it took longer than Slurm's commands wait (MessageTimeout)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.run(CONTROLLER, *cmd).stdout
            except CommandFailed as error:
                if "Socket timed out" not in error.stderr or time.monotonic() > deadline:
                    raise

    def wait_state(self, job_id: str, states: str | Iterable[str], timeout_s: float = PATIENCE_S) -> str:
        """Wait until the job is in one of the states, and return it. Raises ClusterError."""
        wanted = {states} if isinstance(states, str) else set(states)
        if not until(lambda: self.state(job_id) in wanted, timeout_s):
            raise ClusterError(
                f"Job {job_id} did not reach {wanted} in {timeout_s} s: {self.job(job_id)}\n{self.logs()}"
            )
        return self.state(job_id)

    def start_now(self, job_id: str) -> None:
        """Let a requeued job start without the usual delay.

        Not at once, and said again until it has run for two seconds: a node refuses a job that it ended within the
        same second (its credential was revoked), and Slurm then puts it back with the delay set anew.
        """
        seen: list[str] = []

        def runs() -> bool:
            self.run(CONTROLLER, "scontrol", "update", f"JobId={job_id}", "StartTime=now", check=False)
            seen.append(self.state(job_id))
            return seen[-2:] == ["RUNNING", "RUNNING"] or seen[-1] not in ("PENDING", "COMPLETING", "RUNNING")

        time.sleep(1.5)
        until(runs, 60, step_s=2.0)


def until(condition: Callable[[], bool], timeout_s: float, step_s: float = 0.1) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True
