"""A job's record of itself: one JSON file, which ``queue``, ``logs`` and ``tunnel`` read.

It is ``$BIGBATCH_HOME/jobs/<job id>/job.json`` (BIGBATCH_HOME: default ``~/.bigbatch``). The folder has mode 0700, lies
on a file system that all nodes see, and also holds the job's token (0600) and its nodes' logs.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import PRIVATE, write_json
from bigbatch.cluster.host.holder import JOB_RECORD as FILE, user_name
from bigbatch.cluster.host.profiles import InputError

SCHEMA_VERSION = 1
HOME_VARIABLE = "BIGBATCH_HOME"


def records_home(env: Mapping[str, str] = os.environ) -> Path:
    """The folder of all jobs' records, as an absolute path.

    Raises InputError where the user has no home, as a user id without a name in a container.
    """
    text = env.get(HOME_VARIABLE) or "~/.bigbatch"
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError:
        raise InputError(
            f"jobs are recorded in a folder; got {text!r}, and there is no home. "
            f"Set {HOME_VARIABLE} to a folder that all nodes see, or HOME."
        ) from None


def job_folder(job_id: str, env: Mapping[str, str] = os.environ) -> Path:
    """The folder of a job's record."""
    return records_home(env) / "jobs" / job_id


@dataclass
class JobRecord:
    """The current state of a job. Times are seconds since the epoch."""

    job_id: str
    state: str
    """The state of the state machine in ``bigbatch.cluster.job``."""
    nodes: list[str] = field(default_factory=list)
    """All nodes that Slurm bills, also those whose Ray did not start."""
    head: str | None = None
    address: str | None = None
    """Ray's, ``ip:port``."""
    dashboard_port: int | None = None
    """The dashboard's port on the head's loopback."""
    token_path: str | None = None
    study_folder: str | None = None
    log: str | None = None
    """Absolute path of the job's own log."""
    end_time: float | None = None
    """When Slurm will end the job."""
    restarts: int = 0
    fruitless_restarts: int = 0
    """Starts in a row in which no epoch was finished and no checkpoint written; with this one, until it has."""
    successor: str | None = None
    """The job that continues this one (``--chain``)."""
    reason: str | None = None
    """Why the job ended or waits, in words."""

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> JobRecord:
        """Read a record from a file's values. Unknown fields are ignored, and missing ones have their defaults.

        Raises KeyError if ``job_id`` or ``state`` is missing.
        """
        return json_values.read_fields(cls, values, job_id=str(values["job_id"]), state=str(values["state"]))

    def write(self, env: Mapping[str, str] = os.environ) -> Path:
        """Replace the file atomically. Only its owner can read it."""
        folder = job_folder(self.job_id, env)
        make_home(env)
        for path in (folder.parent, folder):
            path.mkdir(exist_ok=True, mode=0o700)
            check_folder_is_ours(path.resolve())  # the user may have linked it to a larger file system
        path = folder / FILE
        write_json(path, {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}, indent=2, mode=PRIVATE)
        return path


def make_home(env: Mapping[str, str] = os.environ) -> Path:
    """The folder of all jobs' records; made if it is missing. Raises OSError, e.g. if it belongs to another user."""
    folder = records_home(env)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True, mode=0o700)
    check_folder_is_ours(folder.resolve())
    return folder


def check_folder_is_ours(folder: Path) -> None:
    """Raise PermissionError unless ``folder`` belongs to this user and nobody else can write to it.

    Anyone who could replace the token or the orders to the nodes could run code as this user.
    """
    about = folder.lstat()
    if about.st_uid != os.getuid():
        own = folder / user_name()
        why = f"{folder} belongs to user {about.st_uid}; each user needs their own folder, e.g. {own}"
        raise PermissionError(errno.EPERM, why, str(folder))
    if about.st_mode & 0o022:
        why = f"{folder} must be writable by nobody else: chmod go-w {folder}"
        raise PermissionError(errno.EPERM, why, str(folder))


def read_record(job_id: str, env: Mapping[str, str] = os.environ) -> JobRecord | None:
    """The record of a job; None if there is none, or it cannot be read."""
    try:
        values = json_values.json_object((job_folder(job_id, env) / FILE).read_text())
        return JobRecord.from_dict(values) if values["schema_version"] == SCHEMA_VERSION else None
    except (OSError, ValueError, KeyError):
        return None


def all_records() -> list[JobRecord]:
    """The records of all jobs."""
    found = (read_record(path.name) for path in (records_home() / "jobs").glob("*"))
    return [record for record in found if record is not None]
