"""Checks before the job waits for its nodes. A refusal is one line with the fix."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from bigbatch.base import mounts
from bigbatch.base.private_folder import base_folders
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.lease import FILE, Lease, StudyHeld
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.cluster.job.allocated_nodes import Allocation
from bigbatch.cluster.record import job_record

SHORTEST_RUN_S = 60.0


def check_commands() -> None:
    """Raise InputError if a command that starts or ends nodes is missing."""
    for name in ("srun", "scancel"):
        if not slurm_commands.is_installed(name):
            raise InputError(
                f"{name} starts or ends nodes, and is not on PATH of {os.uname().nodename}. "
                "Set BIGBATCH_PRELUDE to a shell file that loads Slurm's commands."
            )


def check_time(chosen: options.JobOptions, allocation: Allocation) -> None:
    """Raise InputError if trials would have to save as soon as they begin."""
    left = allocation.end_time - time.time() if allocation.end_time else None
    if left is not None and left < chosen.margin_s + SHORTEST_RUN_S:
        # A plain number in --time counts minutes.
        least = int(chosen.margin_s + SHORTEST_RUN_S) // 60 + 1
        raise InputError(
            f"the job's time limit must leave {SHORTEST_RUN_S:.0f} s before trials save themselves, "
            f"{chosen.margin_s:.0f} s (--margin) from its end; got {left:.0f} s. Write sbatch --time={least} or more."
        )


def check_places(study: Path | None, cwd: Path, allocation: Allocation) -> None:
    """Raise InputError if Slurm could not go to the job's work folder, or the study would lie on this node's own disk.

    Slurm then goes to /tmp without ending the job. Files there are lost with the job, or nobody finds them.
    """
    asked = allocation.work_folder
    if asked and not os.path.isdir(asked):
        raise InputError(
            f"the job's work folder must be on a file system that the nodes see; got {asked!r}, which "
            f"{allocation.head.name} does not have (Slurm went to {str(cwd)!r}). Submit from a shared folder, or write "
            "sbatch --chdir=FOLDER."
        )
    # Slurm may write a host's full name where the kernel has the short one, and the other way round.
    submitted_on = os.environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0]
    here = {"", os.uname().nodename.partition(".")[0], os.environ.get("SLURMD_NODENAME")}
    # On the node from which it was submitted, the user finds a study that lies on that node's disk.
    if study and submitted_on not in here and mounts.is_of_one_host(study, base_folders(), job_record.records_home()):
        raise InputError(
            f"a study must be on a file system that the nodes share; got {str(study.parent)!r}, which is "
            f"{allocation.head.name}'s own. Write --output with a shared folder."
        )


def places(chosen: options.JobOptions, study: Path | None, cwd: Path) -> list[Path]:
    """The paths that every node must see. One is the study's new lease, which another folder of the same name lacks."""
    found = [cwd, study and study / FILE, options.data_folder(chosen, cwd)]
    return [path for path in found if path is not None]


def check_nodes_see(blind: Mapping[str, str], allocation: Allocation) -> None:
    """Raise InputError if no other node sees the paths that the first node sees.

    ``blind``: name → reason of each node that does not see them. If these are not all others, the job continues without
    them.
    """
    others = [node.name for node in allocation.nodes[1:]]
    if others and blind.keys() >= set(others):
        raise InputError(
            f"work folder, --output and --data must be on a file system that all nodes share; {blind[others[0]]}. "
            "Write folders that are."
        )


def write_first_record(job: job_record.JobRecord) -> None:
    """Write the job's folder and record. Raises InputError if that is not possible."""
    folder = job_record.job_folder(job.job_id)
    try:
        job.write()
    except OSError as error:
        raise InputError(
            f"the job's folder must be writable; got {str(folder)!r} ({error.strerror}). "
            f"Set {job_record.HOME_VARIABLE} to a folder that all nodes share."
        ) from None


def take_lease(study: Path, job_id: str) -> Lease:
    """Take the right to write the study. Raises InputError if another job or process has it, or on a write error."""
    lease = Lease(study, job_id)
    try:
        lease.take(say=lambda line: print(line, flush=True))
    except StudyHeld as held:
        raise InputError(f"only one driver at a time may write a study; {held}, or write --study OTHER.") from None
    except OSError as error:
        raise InputError(
            f"the study's folder must be writable; got {str(study)!r} ({error.strerror}). "
            "Write --output with a folder that all nodes share."
        ) from None
    return lease
