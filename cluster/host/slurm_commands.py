"""Run Slurm's commands, and parse the values in its variables and answers: counts, lists, memory, times, resources.

Each command has a timeout, so that a busy or dead controller never blocks the caller. Unknown text raises no error,
because sites have their own plugins and prologs, and an odd number must not end a running job. An unreadable value is
None, or empty. Standard library only: login nodes may have nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from bigbatch.base.waits import COMMAND_S

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
NOTHING = (None, "", "(null)", "N/A", "UNLIMITED", "Unknown")
"""``scontrol`` writes these for a field without a value."""
OTHER_TRES = ("null", "cpu", "mem", "node", "billing", "energy", "license", "fs", "vmem", "pages")
"""Resources that are counted beside generic ones (``AllocTRES=cpu=4,mem=8G,node=1,gres/gpu=2``)."""

# Values may contain blanks (Command=/a b/c), so a field ends where the next " Name=" begins.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:_]*)=(.*?)(?=\s[A-Z][A-Za-z/:_]*=|\s*$)", re.DOTALL)
# A socket list or a repetition may follow: 8(S:0-1), 4(x2); or a plus if nodes differ: 64+.
_NUMBER = re.compile(r"(\d+)([KMGTP]?)\+?(?:\([^)]*\))?")


def is_set(value: str | None) -> bool:
    """Whether a field of ``scontrol show job`` has a value."""
    return value not in NOTHING


def read_count(text: str | None) -> int | None:
    """Parse ``8``, ``8(S:0-1)``, ``64+``, ``2K`` (2048: commands shorten large counts). None for any other text."""
    match = _NUMBER.fullmatch((text or "").strip())
    return int(match[1]) * UNITS[match[2]] if match else None


def least_count(text: str | None) -> int | None:
    """The smaller number of a range: ``2-4`` → 2."""
    return read_count((text or "").strip().partition("-")[0])


def largest_count(text: str | None) -> int | None:
    """The larger number of a range: ``1-4`` → 4; None for ``1-infinite``."""
    return read_count((text or "").strip().rpartition("-")[2])


def memory_bytes(text: str | None) -> int | None:
    """Bytes in ``SLURM_MEM_PER_NODE`` and similar variables: MiB, or with a unit (``64G``). None for 0: the whole
    node."""
    match = re.fullmatch(r"(\d+)([KMGTP]?)[Bcn]?", (text or "").strip(), re.IGNORECASE)
    return (int(match[1]) * UNITS[match[2].upper() or "M"] or None) if match else None


def per_node(text: str | None) -> list[int]:
    """Counts for each node: ``4(x2),2`` → 4, 4, 2. Empty if there are none."""
    counts: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def count_listed_devices(text: str | None) -> int:
    """How many devices a list names: ``0,2-3`` → 3, ``GPU-8f…,GPU-1c…`` → 2, ``NoDevFiles`` → 0."""
    count = 0
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and last.isdigit():
            count += max(0, int(last) - int(first) + 1)
        elif is_set(part.strip()) and part.strip() not in ("NoDevFiles", "-1", "none", "void"):
            count += 1
    return count


def read_gpu_count(text: str | None) -> int | None:
    """GPUs in ``SLURM_GPUS_ON_NODE`` and similar: ``8``, ``8(S:0-1)``, ``gpu:a100:4(S:0)``, ``a100:3,v100:1``."""
    count = read_count(text)
    if count is not None or not is_set((text or "").strip()):
        return count
    parts = gres_parts(text or "")
    named = [count for name, _, count in parts if name == "gpu"]
    others = [count for name, kind, count in parts if not kind and name not in ("shard", "mps")]  # by their type alone
    return sum(named or others) if parts else None


def granted_gpus_here(env: Mapping[str, str]) -> int | None:
    """GPUs that Slurm has granted on this node, from the first variable that is set; None if none is."""
    count = read_gpu_count(env.get("SLURM_GPUS_ON_NODE"))
    lists = (env.get(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"))
    return count if count is not None else next((count_listed_devices(one) for one in lists if one), None)


def gres_parts(text: str | None) -> list[tuple[str, str, int]]:
    """Name, type (may be empty) and count of each generic resource.

    Reads ``gres/gpu:a100:4``, ``gres:gpu:2``, ``gpu:a100:4(S:0-1)``, ``gpu:(null):3(IDX:0-7)`` and
    ``cpu=4,gres/gpu:a100=2``. Slurm may count a resource both by type and in total (``gres/gpu:a100=1,gres/gpu=1``).
    Then the entry without a type is the rest of the total.
    """
    found: list[tuple[str, str, int]] = []
    in_all: set[tuple[str, int]] = set()
    for part in re.sub(r"\([^)]*\)", "", text or "").split(","):
        is_gres = part.strip().startswith(("gres/", "gres:"))
        name, *rest = re.split("[:=]", re.sub(r"^gres[:/]", "", part.strip()))
        if not name or name.partition("/")[0] in OTHER_TRES or ("=" in part and not is_gres):
            continue
        last = read_count(rest[-1]) if rest else None
        kinds = [word for word in (rest if last is None else rest[:-1]) if word and word != "no_consume"]
        if "=" in part and not kinds:
            in_all.add((name, len(found)))
        found.append((name, kinds[0] if kinds else "", 1 if last is None else last))
    for name, at in in_all:
        typed = sum(count for other, kind, count in found if other == name and kind)
        found[at] = (name, "", max(0, found[at][2] - typed))
    return [part for at, part in enumerate(found) if part[2] or (part[0], at) not in in_all]


def gres_count(text: str, name: str) -> int:
    """The count of a resource, of all types."""
    return sum(count for other, _, count in gres_parts(text) if other == name)


def seconds_since_epoch(text: str | None) -> float | None:
    """Parse ``2026-11-22T10:00:00`` (local time) or a number into seconds since the epoch; None for Unknown."""
    text = (text or "").strip()
    try:
        return float(text) if text.isdigit() else time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_job_fields(text: str) -> dict[str, str]:
    """The fields of a job, by name, from ``scontrol --oneliner show job``; of several jobs, of the first."""
    before, *jobs = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    return dict(_FIELD.findall((jobs[0] if jobs else before).strip()))


def first_host(node_list: str) -> str:
    """``jwb[0021-0024,0101],x1`` → ``jwb0021``, ``r[1-2]n[03-04]`` → ``r1n03``.

    Does not need Slurm, which a container may lack. Raises ValueError.
    """
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", node_list).partition(",")[0]
    if not first or "[" in first:
        raise ValueError(f"not a node list of Slurm: {node_list!r}")
    return first


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
UNKNOWN_JOB = "Invalid job id"
"""Slurm's message about a job that the controller has forgotten, or never knew."""

NOT_WAITING = (UNKNOWN_JOB, "Job is no longer pending execution", "Job has already finished")
"""Slurm's messages about a job that does not wait for its start (any more)."""


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
    """The fields of ``scontrol --details show job``, by name. Raises SlurmError."""
    return parse_job_fields(run("scontrol", "--oneliner", "--details", "show", "job", job_id, timeout_s=timeout_s))


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
    try:
        said = run("sbatch", "--parsable", *options, script, *arguments, env=env).splitlines()
    except SlurmSilent as error:  # the controller may have accepted the job before
        raise SlurmSilent(f"{str(error).rstrip('.')}. Look first whether the job is there: `squeue --me`.") from None
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
    """Make a requeued job start ``delay_s`` seconds from now, not after two minutes. Its owner may do this.

    When the job's old processes are gone, Slurm delays the start by two minutes, unless the start time then lies in the
    future. So the delay must be longer than the job takes to end; "now" would have no effect.
    """
    run("scontrol", "update", f"JobId={job_id}", f"StartTime=now+{delay_s}")


def is_running(job_id: str) -> bool | None:
    """Whether a job holds nodes now; None if Slurm does not say."""
    return _is_listed(job_id, "R,CG,S,CF")


def has_ended(job_id: str) -> bool | None:
    """Whether a job neither holds nodes nor waits for any; None if Slurm does not say."""
    listed = _is_listed(job_id, "PD,R,CG,S,CF,RQ,RH")
    return None if listed is None else not listed


def _is_listed(job_id: str, states: str) -> bool | None:
    try:
        # By default squeue leaves out suspended jobs, which still hold their nodes.
        return bool(run("squeue", "--noheader", "--format=%T", f"--states={states}", "--jobs", job_id).strip())
    except SlurmError as error:
        return False if UNKNOWN_JOB in str(error) else None


def configured_s(name: str, default_s: float, timeout_s: float) -> float:
    """A time of Slurm's configuration in seconds, e.g. ``KillWait``; Slurm's default if it does not say."""
    try:
        answer = run("scontrol", "show", "config", timeout_s=timeout_s)
    except SlurmError:
        return default_s
    match = re.search(rf"^{name}\s*=\s*(\d+)", answer, re.MULTILINE)  # "30 sec"
    return float(match[1]) if match else default_s
