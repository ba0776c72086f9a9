"""``bigbatch cluster doctor``: find what would keep a search from running here, before it costs a GPU hour.

On a login node it checks that machine and asks Slurm. Inside an allocation it checks every node and the network between
them. If a part is missing (torch, a quota command), it still checks the rest.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bigbatch.base.command_line import make_parser
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.cluster.doctor.findings import (
    FAIL,
    OK,
    WARN,
    Finding,
    judge_allreduce,
    judge_answers,
    judge_nodes,
)
from bigbatch.cluster.host import quota, slurm_commands
from bigbatch.cluster.host.profiles import GENERIC, Site, find_site
from bigbatch.cluster.record import job_record

MARK = "BIGBATCH-PROBE "
STEP_S = 180.0


def doctor_main(argv: Sequence[str]) -> int:
    """Print every finding. Returns 1 if one of them is FAIL."""
    p = make_parser("doctor", "Check this machine, or the nodes of this allocation.")
    p.add_argument(
        "--site", metavar="NAME|FILE.toml", help="the site's profile (default: chosen by host name and variables)"
    )
    p.add_argument("--shared", metavar="DIR", help="the folder that all nodes must see (default: BIGBATCH_HOME)")
    p.add_argument("--python", metavar="PATH", help="the nodes' interpreter (default: BIGBATCH_PYTHON, else this one)")
    p.add_argument("--json", action="store_true", help="print each finding as a line of JSON")
    args = p.parse_args(argv)
    findings = examine(find_site(args.site), shared=args.shared, python=args.python)
    for finding in findings:
        print(json.dumps(vars(finding)) if args.json else as_text(finding), flush=True)
    counts = {status: sum(finding.status == status for finding in findings) for status in (OK, WARN, FAIL)}
    if not args.json:
        print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts[FAIL] else 0


def as_text(finding: Finding) -> str:
    """The finding as a line, and its advice as a second one."""
    line = f"{finding.status:5}{finding.what:15}{finding.seen}"
    return f"{line}\n     {'':15}→ {finding.advice}" if finding.advice else line


def examine(site: Site, *, shared: str | None = None, python: str | None = None) -> list[Finding]:
    """All findings about this machine, or about all nodes of the allocation around this process."""
    env = {**os.environ, **_network(site)}
    python = python or env.get("BIGBATCH_PYTHON") or sys.executable
    findings = [judge_site(site), *judge_slurm(site)]
    folder, problem = _workplace(_above(job_record.records_home(env)) if shared is None else Path(shared))
    if folder is None:
        advice = "Write --shared, or set BIGBATCH_HOME." if shared is None else "Make it, or write another --shared."
        return [*findings, Finding(FAIL, "shared folder", problem, advice)]
    try:
        mark = os.urandom(8).hex()
        (folder / "mark").write_text(mark)
        nodes, problems = _ask("facts", folder, python, env)
        expected = slurm_commands.least_count(env.get("SLURM_JOB_NUM_NODES")) or 1 if env.get("SLURM_JOB_ID") else 1
        findings += judge_answers("nodes answer", nodes, expected, problems)
        findings += judge_nodes(nodes, mark, in_job=bool(env.get("SLURM_JOB_ID")))
        is_shared = all(node["shared"]["mark"] == mark for node in nodes)  # else nodes cannot find each other
        if expected > 1 and len(nodes) == expected and is_shared:
            findings += judge_allreduce(*_ask("allreduce", folder, python, env), expected)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [*findings, judge_privacy(job_record.records_home(env)), *judge_quota_command(site)]


def _network(site: Site) -> dict[str, str]:
    values = {
        "BIGBATCH_INTERFACE": site.interface,
        "BIGBATCH_HOST_SUFFIX": site.host_suffix,
        "BIGBATCH_NODE_TMP": site.node_tmp,
    }
    return {name: value for name, value in values.items() if value and not os.environ.get(name)}


def _above(home: Path) -> Path:
    """``home``, or the folder in which a job will make it. The doctor leaves nothing behind."""
    return next((folder for folder in (home, *home.parents) if folder.exists()), home)


def _workplace(shared: Path) -> tuple[Path | None, str]:
    """A temporary folder in ``shared`` for the questions; or None, and why there is none."""
    try:
        return Path(tempfile.mkdtemp(prefix=".doctor-", dir=os.path.abspath(shared))), ""
    except OSError as error:
        return None, f"{shared}: {error.strerror}"


# Asking


def _ask(what: str, folder: Path, python: str, env: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Each node's answer, and what went wrong."""
    python = os.path.abspath(python) if os.sep in python else python
    command = [python, "-m", "bigbatch.cluster.doctor.probe", what, str(folder.absolute())]
    if env.get("SLURM_JOB_ID") and shutil.which("srun"):
        count = slurm_commands.least_count(env.get("SLURM_JOB_NUM_NODES")) or 1
        # -n and --ntasks-per-node: srun would otherwise inherit the allocation's numbers and double the tasks.
        command = ["srun", "--overlap", f"-N{count}", f"-n{count}", "--ntasks-per-node=1", *command]
    inner = {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_ROOT), env.get("PYTHONPATH")]))}
    inner.pop("SLURM_NTASKS_PER_NODE", None)
    try:
        # Run elsewhere: with -m Python first looks into the current folder, which may contain a cluster.py.
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, env=inner, cwd=IMPORT_ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        partial = getattr(error, "stdout", None) or b""
        text = partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        return _answers(text), f"{shlex.join(command[:1])}: {type(error).__name__}"
    lines = done.stderr.strip().splitlines()
    lines = [
        line for line in lines if not line.startswith("srun:")
    ] or lines  # what Python says comes before srun's word
    return _answers(done.stdout), (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def _answers(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        if line.startswith(MARK):
            try:
                found.append(json.loads(line[len(MARK) :]))
            except ValueError:
                continue
    return sorted(found, key=lambda answer: str(answer.get("host")))


# This machine and its site


def judge_site(site: Site) -> Finding:
    """Which profile is used."""
    if site.name == GENERIC:
        advice = "BigBatch asks Slurm for the limits. docs/submitting.md shows a profile of ten lines."
        return Finding(OK, "site", "no profile matches this machine", advice)
    return Finding(OK, "site", f"{site.name} ({site.path})")


def judge_slurm(site: Site) -> list[Finding]:
    """Slurm's version, whether jobs can be requeued, and the time between its signals."""
    if not slurm_commands.is_installed("scontrol"):
        return [Finding(WARN, "Slurm", "scontrol is not on PATH", "Run this on a login node or inside a job.")]
    try:
        text = slurm_commands.run("scontrol", "show", "config")
    except slurm_commands.SlurmError as error:
        return [Finding(FAIL, "Slurm", str(error), "Try again later. If it persists, ask the site's support.")]
    config = slurm_commands.parse_config(text)
    findings = [Finding(OK, "Slurm", f"version {config.get('SLURM_VERSION', 'unknown')}")]
    if config.get("JobRequeue") == "0":
        advice = "" if not site.requeue else "Submit with --chain, and write requeue = false in the site's profile."
        findings.append(
            Finding(WARN if advice else OK, "requeue", "JobRequeue is 0: a job cannot start a second time", advice)
        )
    elif not site.requeue:
        findings.append(Finding(OK, "requeue", "the profile forbids it: jobs submit a successor"))
    else:
        findings.append(Finding(OK, "requeue", "jobs may requeue"))
    wait = slurm_commands.read_count(config.get("KillWait", "").partition(" ")[0])
    if wait is not None and wait < 10:
        advice = "Submit with a --signal that leaves enough time to write a checkpoint."
        findings.append(Finding(WARN, "signal", f"a cancelled job is killed after {wait} s (KillWait)", advice))
    return findings


def judge_privacy(home: Path) -> Finding:
    """Whether only this user may enter the folder that holds the tokens."""
    try:
        mode = stat.S_IMODE(home.stat().st_mode)
    except OSError:
        return Finding(OK, "privacy", f"{home} does not exist yet")
    if mode & 0o077:
        return Finding(
            WARN, "privacy", f"others may enter {home} (mode {mode:o})", f"chmod 700 {shlex.quote(str(home))}"
        )
    return Finding(OK, "privacy", f"only you may enter {home}")


def judge_quota_command(site: Site) -> list[Finding]:
    """The answer of the site's quota command."""
    if not site.quota_command:
        return []
    try:
        lines = quota.run_quota_command(site)
    except quota.NoAnswer as error:
        return [Finding(WARN, "quota", f"{site.quota_command} on {socket.gethostname()}: {error}", "Run it yourself.")]
    return [Finding(OK, "quota", f"{site.quota_command}: " + " / ".join(lines))]
