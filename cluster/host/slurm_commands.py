"""Slurm's commands, each with a timeout: a controller that is busy or down must not hang a caller.

Standard library only, Python 3.9: login nodes may have nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from bigbatch.cluster.host import slurm_values
from bigbatch.cluster.host.waits import COMMAND_S, KILL_WAIT_S

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
"""What Slurm's commands say where the controller, or munge, is down, changing over or too busy (slurm_errno.c)."""
UNKNOWN_JOB = "Invalid job id"
"""What they say of a job that the controller has forgotten, or never had."""


class SlurmError(RuntimeError):
    """A Slurm command is missing, failed or did not answer; the message is one line."""


class SlurmSilent(SlurmError):
    """The controller did not answer: nothing was refused, and the same question may be answered later."""


def is_installed(command: str = "sbatch") -> bool:
    return shutil.which(command) is not None


def run(
    *command: str, timeout_s: float = COMMAND_S, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> str:
    """What ``command`` prints, run with ``env`` (default: this process's). Raises SlurmError."""
    name = command[0]
    # Users may have Slurm write times in words ("Tomorr 10:00"), which nobody can read back.
    plain = {key: value for key, value in (os.environ if env is None else env).items() if key != "SLURM_TIME_FORMAT"}
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=plain)
    except FileNotFoundError:
        raise SlurmError(f"{name} is not on PATH. Run this on a machine with Slurm's commands.") from None
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"{name} did not answer within {timeout_s:g} s. Try again when Slurm does.") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        kind = SlurmSilent if any(words in line for words in NO_ANSWER for line in lines) else SlurmError
        raise kind(f"{name} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def hostnames(node_list: str) -> list[str]:
    """``n[1-3,7]`` → its nodes, in order."""
    return run("scontrol", "show", "hostnames", node_list).split()


def job_fields(job_id: str, timeout_s: float = COMMAND_S) -> dict[str, str]:
    """What ``scontrol show job`` knows, by field name; of a heterogeneous job's first component. Raises SlurmError."""
    return component_fields(job_id, timeout_s)[0]


def component_fields(job_id: str, timeout_s: float = COMMAND_S) -> list[dict[str, str]]:
    """The same of each component, in order; one where the job is not heterogeneous. Raises SlurmError."""
    text = run("scontrol", "--oneliner", "show", "job", job_id, timeout_s=timeout_s)
    return slurm_values.parse_job_fields(text) or [{}]


def sbatch(
    script: str,
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """``sbatch --parsable options script arguments``. Returns the job's id."""
    return run("sbatch", "--parsable", *options, script, *arguments, env=env).strip().split(";")[0]


def scancel(job_id: str, *, signal: str | None = None, steps_only: bool = False) -> None:
    """Cancel a job, or send ``signal`` to it; with ``steps_only`` to its steps, not to its batch script."""
    how = ["-s", signal] if signal else []
    # scancel with a signal and without --batch or --full reaches the steps only.
    if signal and not steps_only:
        how.append("--full")
    run("scancel", *how, job_id)


def scontrol_requeue(job_id: str) -> None:
    """Put a running job back into the queue; its processes are ended at once. See ``start_after``."""
    run("scontrol", "requeue", job_id)


def start_after(job_id: str, delay_s: int) -> None:
    """Let a requeued job start ``delay_s`` from now, which its owner may say, instead of after two minutes.

    Slurm sets those two minutes when the job's old processes are gone, unless its start time lies in the
    future by then. So "now" would be forgotten, and so is a delay that is shorter than the job's end takes.
    """
    run("scontrol", "update", f"JobId={job_id}", f"StartTime=now+{delay_s}")


def exclude(job_id: str, nodes: Sequence[str]) -> None:
    """Keep a pending job off ``nodes``."""
    run("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}")


def is_running(job_id: str) -> bool | None:
    """Whether a job holds nodes right now, or None if Slurm does not say."""
    return _is_listed(job_id, "R,CG,S,CF")


def has_ended(job_id: str) -> bool | None:
    """Whether a job neither holds nodes nor waits for some, or None if Slurm does not say."""
    listed = _is_listed(job_id, "PD,R,CG,S,CF,RQ,RH")
    return None if listed is None else not listed


def _is_listed(job_id: str, states: str) -> bool | None:
    try:
        return bool(run("squeue", "--noheader", "--format=%T", f"--states={states}", "--jobs", job_id).strip())
    except SlurmError as error:
        return False if UNKNOWN_JOB in str(error) else None


def kill_wait_s(timeout_s: float = COMMAND_S) -> float:
    """Seconds between Slurm's SIGTERM and its SIGKILL (its default where it does not say)."""
    try:
        answer = slurm_values.parse_config(run("scontrol", "show", "config", timeout_s=timeout_s))
    except SlurmError:
        answer = {}
    return float(slurm_values.read_count(answer.get("KillWait", "").partition(" ")[0]) or KILL_WAIT_S)  # "30 sec"


def usable_nodes(partition: str, features: str = "", gres: str = "") -> list[str]:
    """Nodes of a partition that are up and have the features (``a&b``: both) and as much of each generic resource.

    Args:
        gres: what a job wants on each node, as ``scontrol show job`` says it: ``gres/gpu:a100:4,gres/shard:2``.
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
