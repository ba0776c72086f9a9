"""List the user's jobs and their progress, read their logs, cancel them, and explain how to reach their dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.holder import user_name
from bigbatch.cluster.host.profiles import InputError, Site, find_site
from bigbatch.cluster.record import job_record, study_progress
from bigbatch.cluster.record.job_record import JobRecord
from bigbatch.cluster.record.study_progress import StudyProgress

QUEUE_FORMAT = "%i|%T|%M|%l|%D|%P|%r|%j"


@dataclass(frozen=True)
class QueueEntry:
    """A job, from Slurm, its record and its study. None: not known."""

    job_id: str
    name: str | None = None
    slurm_state: str | None = None
    """``GONE``: Slurm lists a job no more that did not end by itself. None: it ended, or Slurm did not answer."""
    elapsed: str | None = None
    time_limit: str | None = None
    nodes: str | None = None
    partition: str | None = None
    reason: str | None = None
    record: JobRecord | None = None
    study: StudyProgress | None = None


# Queue


def queue(*, ended: bool = False) -> list[QueueEntry]:
    """The user's jobs that Slurm lists; with ``ended`` also jobs of which only the record is left.

    Raises SlurmError if Slurm does not answer; with ``ended`` it returns the records instead.
    """
    records = {one.job_id: one for one in job_record.all_records()}
    unlisted: str | None = "GONE"
    try:
        listed = _listed()
    except slurm_commands.SlurmError:
        if not ended:
            raise
        listed, unlisted = [], None
    jobs = [_with_record(job, records.pop(job.job_id, None)) for job in listed]
    if ended:
        for one in records.values():
            job = QueueEntry(one.job_id, slurm_state=None if one.state == "ended" else unlisted)
            jobs.append(_with_record(job, one))
    return sorted(jobs, key=lambda job: (len(job.job_id), job.job_id))


def _listed() -> list[QueueEntry]:
    text = slurm_commands.run("squeue", "--noheader", "--user", user_name(), f"--format={QUEUE_FORMAT}")
    jobs = []
    for line in text.splitlines():
        # A job's name is the user's and may hold anything, also a line break; it stands last for the same reason.
        if line.count("|") < 7:
            continue
        job_id, state, elapsed, limit, nodes, partition, reason, name = line.strip().split("|", 7)
        jobs.append(
            QueueEntry(job_id, name, state, elapsed, limit, nodes, partition, None if reason == "None" else reason)
        )
    return jobs


def _with_record(job: QueueEntry, found: JobRecord | None) -> QueueEntry:
    if found is None:
        return job
    study = study_progress.read_study_progress(found.study_folder) if found.study_folder else None
    return QueueEntry(**{**vars(job), "record": found, "study": study})


def jobs_table(jobs: Sequence[QueueEntry]) -> str:
    """The jobs as text, one line for each."""
    rows: list[tuple[str, ...]] = [("JOB", "SLURM", "STATE", "TIME", "LIMIT", "NODES", "STUDY", "TRIALS", "BEST", "")]
    rows += [_row(job) for job in jobs]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(job: QueueEntry) -> tuple[str, ...]:
    study, found = job.study, job.record
    notes = [job.reason] if job.reason else []
    if found:
        notes += [found.reason] if found.reason else []
        notes += [f"goes on as job {found.successor}"] if found.successor else []
        notes += [f"restarts: {found.restarts}"] if found.restarts else []
    trials = f"{study.finished}/{'?' if study.planned is None else study.planned}" if study else "-"
    return (
        job.job_id,
        job.slurm_state or "-",
        found.state if found else "-",
        job.elapsed or "-",
        job.time_limit or "-",
        job.nodes or (str(len(found.nodes)) if found else "-"),
        study.name if study else (Path(found.study_folder).name if found and found.study_folder else job.name or "-"),
        trials,
        f"{study.best:.4f}" if study and study.best is not None else "-",
        "; ".join(notes),
    )


# Cancel


def cancel(job_id: str | int) -> list[str]:
    """Cancel a job and its successors (``--chain``). Returns the cancelled ids.

    Raises SlurmError if Slurm does not answer, or knows neither the job nor a successor; InputError.
    """
    job_id = str(job_id)
    _check_id(job_id)
    waiting, seen, cancelled = [job_id], {job_id}, []
    silent: slurm_commands.SlurmSilent | None = None
    while waiting:
        one = waiting.pop(0)
        failure: slurm_commands.SlurmError | None = None
        try:
            had_ended = slurm_commands.has_ended(one)
            slurm_commands.scancel(one)
            if had_ended:  # scancel reports no error, not even for an unknown id
                raise slurm_commands.SlurmError(
                    f"job {one} is not in Slurm's queue: it has ended, or the id is wrong. "
                    "`bigbatch cluster queue` shows your jobs."
                )
            cancelled.append(one)
        except slurm_commands.SlurmSilent as error:
            failure = silent = error
        except slurm_commands.SlurmError as error:  # it has already ended
            failure = error
        found = job_record.read_record(one)  # only now: until it was cancelled it may have got a successor
        if failure and one == job_id and not (found and found.successor):
            raise failure
        if found and found.successor and found.successor not in seen:
            waiting.append(found.successor)
            seen.add(found.successor)
    if silent:
        raise silent
    return cancelled


def _check_id(job_id: str) -> None:
    # An empty or odd id could reach other jobs: squeue and scancel accept lists and patterns.
    if not job_id.replace("_", "").replace("+", "").isdigit():
        raise InputError(f"a job's id must be a number; got {job_id!r}. `bigbatch cluster queue` shows them.")


# Logs


def logs(job_id: str | int, *, node: str | None = None) -> str:
    """The log of a job so far, or that of its ``node``. Raises InputError if there is no log yet."""
    return log_path(str(job_id), node).read_text(errors="replace")


def log_path(job_id: str, node: str | None, *, waits: bool = False) -> Path:
    """The log of a job, or of its node. Raises InputError if there is none, and none to wait for."""
    _check_id(job_id)
    found = job_record.read_record(job_id)
    if node:
        path = job_record.job_folder(job_id) / "nodes" / f"{node}.log"
    else:
        path = Path(found.log) if found and found.log else job_record.records_home() / "logs" / f"{job_id}.log"
    if not path.is_file() and not (waits and any(job.job_id == job_id for job in _listed())):
        raise InputError(
            f"a job has a log once it has begun; got none at {str(path)!r}. "
            "`bigbatch cluster queue --all` shows your jobs."
        )
    return path


# Tunnel


def tunnel(job_id: str, site: Site | None = None, *, local_port: int = 8265) -> str:
    """Instructions to open the job's dashboard from a laptop. They never contain the token.

    Raises InputError if the job has no dashboard (yet).
    """
    _check_id(job_id)
    found = None if slurm_commands.has_ended(job_id) else job_record.read_record(job_id)
    if found is None or not found.head or not found.dashboard_port or found.state in ("requeueing", "ended"):
        state = f"its state is {found.state!r}" if found else "it has ended, or has no record"
        raise InputError(f"job {job_id} has no dashboard; {state}. `bigbatch cluster queue` shows whether it will run.")
    site = site or find_site(None)
    user = user_name()
    login = site.login_host or "LOGIN_NODE"
    lines = [
        "On your own machine:",
        f"    ssh -N -L {local_port}:127.0.0.1:{found.dashboard_port} -J {user}@{login} {user}@{found.head}",
        f"then open http://127.0.0.1:{local_port}",
    ]
    if found.token_path:
        lines.append(f"The dashboard asks for the job's token: it is in {found.token_path}; only you can read it.")
    if not site.port_forwarding:
        lines.append(
            f"{site.title or site.name} does not forward ports: read the progress with `bigbatch cluster queue`."
        )
    return "\n".join(lines)
