"""Continue a job after its time: requeue it, or submit a dependent successor (``--chain``).

The second half finds the successor's options and environment, and whether it is already submitted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.cluster.job import options
from bigbatch.cluster.job.allocated_nodes import DEVICE_VARIABLES, Allocation
from bigbatch.cluster.job.policy import Action
from bigbatch.cluster.record import job_record, study_progress

PREDECESSOR_VARIABLE = "BIGBATCH_PREDECESSOR"
STUDY_VARIABLE = "BIGBATCH_DEFAULT_STUDY"
# Longer than a job's processes need to end: Slurm holds a job whose old processes still end back for two minutes.
START_DELAY_S = 12
ATTEMPTS = 10
CHECKPOINTS = "checkpoints/*/latest.pt"


def default_study_name(job_id: str) -> str:
    """The study's name if the user gave none: the same in every restart and successor."""
    return os.environ.get(STUDY_VARIABLE) or f"bigbatch-{job_id}"


def record_of_predecessor() -> job_record.JobRecord | None:
    """The record of the job that submitted this one as its successor (``--chain``)."""
    before = os.environ.get(PREDECESSOR_VARIABLE)
    return job_record.read_record(before) if before else None


class SavedWork(NamedTuple):
    """The work of a study that a restart need not repeat, including checkpoints within an epoch."""

    epochs: int
    ended: int
    """Trials that have ended."""
    saved: int
    """When the last checkpoint was written, in nanoseconds."""


def saved_work(study: Path | None) -> SavedWork | None:
    """The saved work of a study. None if it is not known: for a user's own command, or unreadable files."""
    if study is None:
        return None
    saved = 0
    for path in study.glob(CHECKPOINTS):
        # Opened: NFS may cache the result of stat. An ending trial may replace the file at this moment.
        with contextlib.suppress(OSError), path.open("rb") as file:
            saved = max(saved, os.fstat(file.fileno()).st_mtime_ns)
    try:
        trials = study_progress.read_study_progress(study)
        return SavedWork(study_progress.finished_epochs(study), trials.ended if trials else 0, saved)
    except OSError:
        return None


def first_record(
    allocation: Allocation, chosen: options.JobOptions, study: Path | None, before: job_record.JobRecord | None
) -> job_record.JobRecord:
    """The first record of a start. ``before``: the record of the last start, or of the predecessor."""
    return job_record.JobRecord(
        job_id=allocation.job_id,
        state="allocation",
        nodes=[node.name for node in allocation.nodes],
        head=allocation.head.name,
        study_folder=str(study) if study else None,
        log=log_path(),
        end_time=allocation.end_time,
        restarts=before.restarts + 1 if before else 0,
        fruitless_restarts=before.fruitless_restarts + 1 if before else 1,
    )


def log_path() -> str | None:
    """The job's log; None if standard output is no file."""
    try:
        # The open file has a name; --output may be a pattern with %j.
        path = os.readlink("/proc/self/fd/1")
    except OSError:
        return None
    return path if path.startswith("/") and not path.startswith("/dev/") else None


def start_again(
    action: Action,
    job: job_record.JobRecord,
    default_study: str,
    say: Callable[[str], None],
    *,
    again: bool = False,
) -> bool:
    """Requeue ``job``, or submit its successor. Raises SlurmError.

    Args:
        again: an earlier try got no answer from Slurm.

    Returns False if the job was cancelled after it was put back into the queue.
    """
    if action is Action.CHAIN:
        # A controller that did not answer may still have accepted the successor.
        known = find_successor(job.job_id) if again else None
        job.successor = known or submit_successor(job.job_id, default_study)
        say(f"job {job.successor} goes on when this one has ended")
    elif action is Action.REQUEUE:
        slurm_commands.scontrol_requeue(job.job_id)  # Slurm ends this process a moment later
        return start_soon(job.job_id, say)
    elif action is Action.LEAVE_TO_SLURM:
        return start_soon(job.job_id, say)
    return True


def resume_options(study: Path | None) -> str | None:
    """The options that continue the search; None if there is no study yet."""
    if study is None or not (study / "study.json").exists():
        return None
    words = shlex.join(["--output", str(study.parent), "--study", study.name, "--resume"])
    return words if (study / JOURNAL_NAME).exists() else f"{words}, and its --storage if it had one"


def start_soon(job_id: str, say: Callable[[str], None]) -> bool:
    """Make a requeued job start before Slurm's usual two minutes have passed. Returns False if it was cancelled."""
    refusal = _insist(lambda: slurm_commands.start_after(job_id, START_DELAY_S))
    if any(words in refusal for words in slurm_commands.NOT_WAITING):
        return False
    if refusal:
        say(f"Slurm does not move the start time; the job starts in about two minutes ({refusal})")
    return True


def _insist(change: Callable[[], None]) -> str:
    """Change a requeued job. Returns Slurm's last refusal; "" if the job is changed.

    Slurm cannot alter a job while its old processes end, so this asks several times.
    """
    refusal = ""
    for _ in range(ATTEMPTS):
        try:
            change()
            return ""
        except slurm_commands.SlurmError as error:  # also where Slurm's SIGTERM for this job ends the command
            refusal = str(error)
        if any(words in refusal for words in slurm_commands.NOT_WAITING):
            break
        time.sleep(0.2)
    return refusal


def submit_successor(job_id: str, default_study: str) -> str:
    """Submit a successor of this job that starts when it has ended. Returns its id. Raises SlurmError."""
    fields = slurm_commands.job_fields(job_id)
    env = {
        **environment_for_successor(os.environ),
        PREDECESSOR_VARIABLE: job_id,
        STUDY_VARIABLE: default_study,
    }
    # --export=ALL on the command line wins over SBATCH_EXPORT=NONE: the successor must know its predecessor.
    options = ["--export=ALL", f"--dependency=afterany:{job_id}", *sbatch_options(fields)]
    options.append(f"--comment={comment_with_mark(fields.get('Comment'), job_id)}")
    return slurm_commands.sbatch(batch_script_of(fields["Command"]), options=options, arguments=sys.argv[1:], env=env)


def batch_script_of(command: str) -> str:
    """The batch script in a job's ``Command``. Arguments follow it, and both may contain blanks."""
    words = command.split(" ")
    candidates = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((path for path in candidates if os.path.isfile(path)), words[0])


MARK = "bigbatch-after-"
"""This word and the predecessor's id are in the successor's comment. They identify it in the queue."""
SBATCH_OPTIONS = {
    "JobName": "--job-name",
    "Partition": "--partition",
    "Account": "--account",
    "QOS": "--qos",
    "TimeLimit": "--time",
    "WorkDir": "--chdir",
    "CPUs/Task": "--cpus-per-task",
    "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu",
    "Features": "--constraint",
    "Reservation": "--reservation",
    "Licenses": "--licenses",
    "ExcNodeList": "--exclude",
}
# sbatch passes its environment on. With these variables a successor would mistake itself for this job, and use its Ray.
THIS_JOB_VARIABLES = ("SLURM_", "SRUN_", "RAY_")


def environment_for_successor(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables of this job; Slurm's configuration stays."""
    kept = {k: v for k, v in env.items() if not k.startswith(THIS_JOB_VARIABLES) and k not in DEVICE_VARIABLES}
    return {**kept, **({"SLURM_CONF": env["SLURM_CONF"]} if "SLURM_CONF" in env else {})}


def sbatch_options(fields: Mapping[str, str]) -> list[str]:
    """A job's resources as options of sbatch, from the fields of ``scontrol show job``."""
    given = {option: fields[name] for name, option in SBATCH_OPTIONS.items() if slurm_commands.is_set(fields.get(name))}
    # sbatch takes one option of each group.
    for name, option, others in (
        ("CpusPerTres", "--cpus-per-gpu", ("--cpus-per-task",)),
        ("MemPerTres", "--mem-per-gpu", ("--mem", "--mem-per-cpu")),
    ):
        if share := re.search(r"gpu(?::[^:=,]*[^:=,\d][^:=,]*)?[:=](\d+[KMGT]?)", fields.get(name, "")):
            given = {one: value for one, value in given.items() if one not in others} | {option: share[1]}
    given["--nodes"] = str(slurm_commands.least_count(fields.get("NumNodes")) or 1)
    # A job has one task on each node, so resources per task become --gres. --gpus takes no word "gpu".
    for name, option in (("TresPerJob", "--gpus"), ("TresPerTask", "--gres"), ("TresPerNode", "--gres")):
        parts = [one for one in slurm_commands.gres_parts(fields.get(name)) if option == "--gres" or one[0] == "gpu"]
        if parts:
            words = [(gres if option == "--gres" else "", kind, str(count)) for gres, kind, count in parts]
            given[option] = ",".join(":".join(filter(None, three)) for three in words)
    if slurm_commands.is_set(fields.get("StdOut")):
        given["--output"] = fields["StdOut"]
    exclusive = ["--exclusive"] if fields.get("OverSubscribe") == "NO" else []
    return [f"{option}={value}" for option, value in given.items()] + exclusive


def comment_with_mark(comment: str | None, job_id: str) -> str:
    """The comment of ``job_id``'s successor: the user's own comment and the mark."""
    words = (comment or "").split() if slurm_commands.is_set(comment) else []
    own = [word for word in words if not word.startswith(MARK)]
    return " ".join([*own, MARK + job_id])


def find_successor(job_id: str) -> str | None:
    """The successor of ``job_id`` in Slurm's queue; None if there is none. Raises SlurmError."""
    for line in slurm_commands.run("squeue", "--me", "--noheader", "--format=%i|%k").splitlines():
        found, _, comment = line.strip().partition("|")
        if MARK + job_id in comment.split():
            return found
    return None
