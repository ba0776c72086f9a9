"""One live job a study: the file ``.lease`` in its folder says which, and when it was last seen.

Works where file locks do not (many parallel file systems), and across hosts.
"""

from __future__ import annotations

import getpass
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import slurm
from cluster.files import read_json, write_json

FILE = ".lease"
STALE_S = 60.0
RENEW_S = 15.0


class StudyHeld(RuntimeError):
    """Another live job writes the study; the message is one line."""


class Lease:
    """The right to write a study. ``renew`` it more often than every STALE_S, ``release`` it at the end."""

    def __init__(self, study: Path, job_id: str) -> None:
        self._path, self._job_id = study / FILE, job_id
        self._next_renewal = 0.0

    def take(self, is_running: Callable[[str], bool | None] = slurm.is_running) -> None:
        """Raises StudyHeld unless the study is free, ours, or left by a job that is gone. OSError: unwritable."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            holder = read_json(self._path)
            age = self._age_s(holder)
            if not may_take(holder, self._job_id, age, is_running):
                raise StudyHeld(
                    f"a study is written by one job at a time; {self._path.parent} is held by job "
                    f"{holder.get('job', '?')} of {holder.get('user', '?')} on {holder.get('host', '?')}, seen "
                    f"{max(0, round(age))} s ago. Wait for it, scancel it, or write --study OTHER."
                ) from None
        self._write()

    def _age_s(self, holder: dict[str, Any]) -> float:
        """Since the holder was last seen; infinite if it has let go meanwhile."""
        seen = holder.get("heartbeat")
        try:
            return time.time() - (seen if isinstance(seen, (int, float)) else self._path.stat().st_mtime)
        except FileNotFoundError:
            return math.inf

    def renew(self) -> None:
        """Say that the job lives, every RENEW_S."""
        if time.monotonic() >= self._next_renewal:
            try:
                self._write()
            except OSError:
                pass  # a full quota must not end a running search; a job that runs keeps its lease anyway

    def _write(self) -> None:
        self._next_renewal = time.monotonic() + RENEW_S
        facts: dict[str, Any] = {"job": self._job_id, "host": os.uname().nodename, "user": getpass.getuser()}
        write_json(self._path, {**facts, "heartbeat": time.time()})

    def release(self) -> None:
        if read_json(self._path).get("job") == self._job_id:
            self._path.unlink(missing_ok=True)


def may_take(holder: dict[str, Any], job_id: str, age_s: float, is_running: Callable[[str], bool | None]) -> bool:
    """Whether ``job_id`` may take a lease that ``holder`` renewed ``age_s`` ago.

    A stale lease is taken only if Slurm says that its job does not run: a job may be suspended.
    """
    owner = str(holder.get("job", ""))
    if owner == job_id:
        return True
    if age_s <= STALE_S:
        return False
    return not owner or is_running(owner) is False
