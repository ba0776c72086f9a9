"""Identify the holder of a folder: a whole job, or a process. A reused process number is not mistaken for it."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOB_FOLDER = "BIGBATCH_JOB_FOLDER"
"""A job of BigBatch sets this variable for its driver."""
JOB_RECORD = "job.json"
"""The job's record of itself in that folder (``cluster/record/job_record.py``)."""


def record_of_job(env: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The last record of the BigBatch job around this process; empty outside such a job."""
    folder = env.get(JOB_FOLDER)
    return read_json(Path(folder) / JOB_RECORD) if folder else {}


@dataclass(frozen=True)
class Holder:
    """A process or job that holds a folder.

    Attributes:
        token: a random text that only this holder has.
        job: Slurm's job id; empty outside a job.
        restart: how often Slurm has restarted the job.
        whole_job: the job holds the folder from its start to its end, also while none of its drivers runs.
        host, user: names for people to read.
        machine: identifies the boot of a kernel and the process namespace, within which process ids are unique.
        pid, start_ticks: the process, and its start in ticks since the boot; 0: the holder is the job itself.
    """

    token: str = ""
    job: str = ""
    restart: str = ""
    whole_job: bool = False
    host: str = ""
    user: str = ""
    machine: str = ""
    pid: int = 0
    start_ticks: int = 0

    def words(self) -> str:
        """The holder in words: ``process 12 in job 7 of ana on n3``."""
        who = f"of {self.user or '?'} on {self.host or '?'}"
        if self.whole_job or not self.pid:
            return f"job {self.job or '?'} {who}"
        return f"process {self.pid}{f' in job {self.job}' if self.job else ''} {who}"


def holder_from_dict(values: Mapping[str, object]) -> Holder:
    """Read a holder from a file's values. Values that are missing or of another type get their defaults. Files of older
    versions name only a job."""
    job, pid = json_values.text(values, "job"), json_values.whole_number_or_none(values, "pid")
    whole_job = values.get("whole_job")
    whole = whole_job if isinstance(whole_job, bool) else bool(job) and pid is None
    return json_values.read_fields(Holder, values, whole_job=whole)


def job_holder(job_id: str) -> Holder:
    """The job that this process runs, as a holder."""
    return Holder(secrets.token_hex(8), job_id, _restart(os.environ), True, os.uname().nodename, user_name())


def process_holder() -> Holder:
    """This process as a holder."""
    return Holder(
        token=secrets.token_hex(8),
        job=os.environ.get("SLURM_JOB_ID", ""),
        restart=_restart(os.environ),
        host=os.uname().nodename,
        user=user_name(),
        machine=machine_id(),
        pid=os.getpid(),
        start_ticks=_start_ticks(os.getpid()) or 0,
    )


def is_driver_of_job(me: Holder, holder: Holder) -> bool:
    """Whether ``holder`` is the job of BigBatch that started this process."""
    return holder.whole_job and bool(os.environ.get(JOB_FOLDER)) and me.job == holder.job != ""


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process lives; None if that cannot be seen from this machine."""
    if not holder.pid or not holder.machine or holder.machine != machine_id():
        return None
    try:
        os.kill(holder.pid, 0)  # /proc alone is not enough: it may hide other users' processes
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    ticks = _start_ticks(holder.pid)
    # Another process may have got the number since: the start tells them apart.
    return ticks is None or ticks == holder.start_ticks


def machine_id() -> str:
    """A text that is equal for all processes that share one range of ids; else the host's name."""
    try:
        return f"{BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _start_ticks(pid: int) -> int | None:
    """The process's start in ticks since the boot. 0: it has ended, but is not collected. None: it cannot be seen."""
    try:
        # A command's name may hold blanks and brackets: the fields that can be counted begin after its last bracket.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if stat[0] in "ZX" else int(stat[19])
    except (OSError, IndexError, ValueError):
        return None


def _restart(env: Mapping[str, str]) -> str:
    return env.get("SLURM_RESTART_COUNT", "0") if env.get("SLURM_JOB_ID") else ""


def user_name() -> str:
    """The name of this process's user, or the user's number: in a container a user id may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
