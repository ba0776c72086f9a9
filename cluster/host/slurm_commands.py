"""Run Slurm's commands, each with a timeout, so that a busy or dead controller never blocks the caller.

Standard library only: login nodes may have nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from bigbatch.base.waits import COMMAND_S, KILL_WAIT_S
from bigbatch.cluster.host import slurm_values

NO_ANSWER = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Communication connection failure",
    "Message send failure",
    "Message receive failure",
    "Slurm backup controller in standby mode",
    "Could not establish a configuration source",
    "Protocol authentication error",
)
"""Messages of Slurm's commands if the controller or munge is down, failing over or too busy (slurm_errno.c)."""
SLURMD_TIMEOUT_S = 300.0
UNKNOWN_JOB = "Invalid job id"
"""Their message about a job that the controller has forgotten, or never knew."""

NOT_YET = "try again"
"""In their messages about a job that they cannot alter at this moment: it still ends, or the database learns of it."""
NOT_WAITING = (UNKNOWN_JOB, "Job is no longer pending execution", "Job has already finished")
"""Their messages about a job that does not wait for its start (any more)."""


class SlurmError(RuntimeError):
    """A Slurm command is missing, failed or did not answer. The message is one line."""


class SlurmSilent(SlurmError):
    """The controller did not answer. It refused nothing, and may answer the same question later."""


def is_installed(command: str = "sbatch") -> bool:
    """Whether ``command`` is on PATH."""
    return shutil.which(command) is not None


def run(
    *command: str, timeout_s: float = COMMAND_S, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> str:
    """The output of ``command``, run with ``env`` (default: this process's environment). Raises SlurmError."""
    name = command[0]
    # Some users let Slurm write times in words ("Tomorr 10:00"), which a program cannot read.
    plain = {key: value for key, value in (os.environ if env is None else env).items() if key != "SLURM_TIME_FORMAT"}
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=plain)
    except FileNotFoundError:
        raise SlurmError(f"{name} is not on PATH. Run this on a machine with Slurm's commands.") from None
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"{name} did not answer within {timeout_s:g} s. Try again later.") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        kind = SlurmSilent if any(words in line for words in NO_ANSWER for line in lines) else SlurmError
        # A site's wrapper or plug-in may say more, before and after Slurm's own words.
        raise kind(f"{name} failed: {([line for line in lines if 'error: ' in line] or lines)[-1]}")
    return done.stdout


def hostnames(node_list: str) -> list[str]:
    """``n[1-3,7]`` → its nodes, in order."""
    return run("scontrol", "show", "hostnames", node_list).split()


def job_fields(job_id: str, timeout_s: float = COMMAND_S) -> dict[str, str]:
    """The fields of ``scontrol --details show job``, by name; for a heterogeneous job, of its first component. Raises
    SlurmError."""
    return component_fields(job_id, timeout_s)[0]


def component_fields(job_id: str, timeout_s: float = COMMAND_S) -> list[dict[str, str]]:
    """The fields of each component of a job, in order. A usual job has one component. Raises SlurmError."""
    text = run("scontrol", "--oneliner", "--details", "show", "job", job_id, timeout_s=timeout_s)
    return slurm_values.parse_job_fields(text) or [{}]


def sbatch(
    script: str,
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Run ``sbatch --parsable options script arguments``. Returns the job's id.

    A site's wrapper around sbatch may print a banner, and may leave ``--parsable`` out. Raises SlurmError if no line of
    the output names a job.
    """
    said = run("sbatch", "--parsable", *options, script, *arguments, env=env).splitlines()
    for line in reversed(said):
        found = re.fullmatch(r"(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?", line.strip())
        if found:
            return found[1]
    last = repr(said[-1]) if said else "nothing"
    raise SlurmError(f"sbatch must print the job's id; got {last}. `squeue --me` shows whether the job is there.")


def scancel(job_id: str, *, signal: str | None = None, steps_only: bool = False, timeout_s: float = COMMAND_S) -> None:
    """Cancel a job, or send it ``signal``; with ``steps_only`` only its steps get it, not its batch script."""
    how = ["-s", signal] if signal else []
    # With a signal and without --batch or --full, scancel reaches only the steps.
    if signal and not steps_only:
        how.append("--full")
    run("scancel", *how, job_id, timeout_s=timeout_s)


def scontrol_requeue(job_id: str) -> None:
    """Put a running job back into the queue. Slurm ends its processes at once. See ``start_after``."""
    run("scontrol", "requeue", job_id)


def start_after(job_id: str, delay_s: int) -> None:
    """Let a requeued job start ``delay_s`` seconds from now, not after two minutes. Its owner may do this.

    When the job's old processes are gone, Slurm delays the start by two minutes, unless the start time then lies in the
    future. So the delay must be longer than the job takes to end; "now" would have no effect.
    """
    run("scontrol", "update", f"JobId={job_id}", f"StartTime=now+{delay_s}")


def exclude(job_id: str, nodes: Sequence[str]) -> None:
    """Keep a pending job off ``nodes``."""
    run("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}")


def is_running(job_id: str) -> bool | None:
    """Whether a job holds nodes now; None if Slurm does not say."""
    return _is_listed(job_id, "R,CG,S,CF")


def has_ended(job_id: str) -> bool | None:
    """Whether a job neither holds nodes nor waits for any; None if Slurm does not say."""
    listed = _is_listed(job_id, "PD,R,CG,S,CF,RQ,RH")
    return None if listed is None else not listed


def _is_listed(job_id: str, states: str) -> bool | None:
    try:
        # Unasked, squeue leaves out suspended jobs, which still hold their nodes.
        return bool(run("squeue", "--noheader", "--format=%T", f"--states={states}", "--jobs", job_id).strip())
    except SlurmError as error:
        return False if UNKNOWN_JOB in str(error) else None


def kill_wait_s(timeout_s: float = COMMAND_S) -> float:
    """Seconds between Slurm's SIGTERM and its SIGKILL; Slurm's default if it does not say."""
    return _configured_s("KillWait", KILL_WAIT_S, timeout_s)


def slurmd_timeout_s(timeout_s: float = COMMAND_S) -> float:
    """Seconds after which Slurm gives up a node that does not answer; Slurm's default if it does not say."""
    return _configured_s("SlurmdTimeout", SLURMD_TIMEOUT_S, timeout_s)


def _configured_s(name: str, default_s: float, timeout_s: float) -> float:
    try:
        answer = slurm_values.parse_config(run("scontrol", "show", "config", timeout_s=timeout_s))
    except SlurmError:
        answer = {}
    return float(slurm_values.read_count(answer.get(name, "").partition(" ")[0]) or default_s)  # "30 sec"


def node_hosts() -> list[str]:
    """The host names of all nodes of the cluster; empty if Slurm does not say."""
    try:
        return run("sinfo", "--noheader", "--Node", "--format=%n").split()
    except SlurmError:
        return []


def usable_nodes(partition: str, features: str = "", gres: str = "") -> list[str]:
    """Nodes of a partition that are up and have the features (``a&b``: both) and enough of each generic resource.

    Args:
        gres: the job's needs on each node, as ``scontrol show job`` writes them: ``gres/gpu:a100:4,gres/shard:2``.
    """
    states = "idle,alloc,mix,comp"
    text = run(
        "sinfo",
        "--noheader",
        "--Node",
        f"--partition={partition}",
        f"--states={states}",
        "--Format=NodeHost:256,Gres:1024,Features:4096",
    )
    wanted = {feature for feature in features.split("&") if feature}
    counts = slurm_values.gres_parts(gres)
    # Columns have fixed widths, and any but the first may be empty.
    rows = [(line[:256].strip(), line[256:1280].strip(), line[1280:].strip()) for line in text.splitlines()]
    return [
        name
        for name, has, known in rows
        if name
        and wanted <= set(known.split(","))
        and all(slurm_values.gres_count(has, what, kind) >= count for what, kind, count in counts)
    ]
