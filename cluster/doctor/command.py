"""``bigbatch cluster doctor``: find what would keep a search from running here, before it costs a GPU hour.

On a login node it checks that machine and asks Slurm. Inside an allocation it checks every node and the network between
them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbatch.base.command_line import OneLineParser
from bigbatch.base.root import IMPORT_ROOT
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.profiles import GENERIC, Site, find_site
from bigbatch.cluster.record import job_record

OK, WARN, FAIL = "OK", "WARN", "FAIL"
MARK = "BIGBATCH-PROBE "
STEP_S = 180.0
ADVICE = {
    "python": "Use one interpreter with ray, torch and optuna on a shared folder: --python /path/to/bin/python.",
    "packages": "Use one environment on a shared folder.",
    "GPUs": "Check CUDA_VISIBLE_DEVICES and nvidia-smi there, and that torch fits the driver; submit with "
    "--sbatch=--exclude=NODE and tell the site.",
    "temp folder": "Write node_tmp under [storage] in the site's profile, or set BIGBATCH_NODE_TMP: a short path on "
    "the node's own disk, with room.",
    "shared folder": "Set BIGBATCH_HOME to a folder that all nodes see, with room, e.g. in $WORK or $SCRATCH.",
    "all-reduce": "Name the network's interface or host_suffix in the profile, or --exclude the node. NCCL_DEBUG=INFO "
    "tells more.",
}
"""The subjects about which each node is asked (``probe``), and what to do if its answer shows a fault."""
ALIKE = ("python", "packages")
"""What must be the same on all nodes."""


@dataclass(frozen=True)
class Finding:
    """One result: OK, WARN or FAIL; its subject; what was seen; and advice."""

    status: str
    what: str
    seen: str
    advice: str = ""


def doctor_main(argv: Sequence[str]) -> int:
    """Print every finding. Returns 1 if one of them is FAIL."""
    p = OneLineParser(
        prog="bigbatch cluster doctor", description="Check this machine, or the nodes of this allocation."
    )
    p.add_argument(
        "--site", metavar="NAME|FILE.toml", help="the site's profile (default: chosen by host name and variables)"
    )
    p.add_argument("--shared", metavar="DIR", help="the folder that all nodes must see (default: BIGBATCH_HOME)")
    p.add_argument("--python", metavar="PATH", help="the nodes' interpreter (default: BIGBATCH_PYTHON, else this one)")
    p.add_argument("--json", action="store_true", help="print each finding as a line of JSON")
    args = p.parse_args(argv)
    findings = examine(find_site(args.site), shared=args.shared, python=args.python)
    for one in findings:
        line = f"{one.status:5}{one.what:15}{one.seen}" + (f"\n{'':20}→ {one.advice}" if one.advice else "")
        print(json.dumps(vars(one)) if args.json else line, flush=True)
    return 1 if any(one.status == FAIL for one in findings) else 0


def examine(site: Site, *, shared: str | None = None, python: str | None = None) -> list[Finding]:
    """All findings about this machine, or about all nodes of the allocation around this process."""
    env = {**os.environ, **_network(site)}
    python = python or env.get("BIGBATCH_PYTHON") or sys.executable
    profile = "no profile matches this machine: Slurm is asked for limits" if site.name == GENERIC else str(site.path)
    findings = [Finding(OK, "site", profile), judge_slurm()]
    home = job_record.records_home(env)
    place = Path(shared) if shared else next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=os.path.abspath(place)))
    except OSError as error:
        return [*findings, Finding(FAIL, "shared folder", f"{place}: {error.strerror}", ADVICE["shared folder"])]
    try:
        mark = os.urandom(8).hex()
        (folder / "mark").write_text(mark)
        in_job = bool(env.get("SLURM_JOB_ID"))
        expected = (slurm_commands.least_count(env.get("SLURM_JOB_NUM_NODES")) or 1) if in_job else 1
        nodes, problem = _ask(expected, ["facts", str(folder), mark], python, env)
        findings += judge_nodes(nodes, expected, problem, in_job)
        faults = {one.what for one in findings if one.status == FAIL}
        if expected > 1 and faults.isdisjoint(("nodes answer", "python", "shared folder")):
            nodes, problem = _ask(expected, ["allreduce", str(folder)], python, env)
            findings += judge_nodes(nodes, expected, problem, in_job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return findings


def _network(site: Site) -> dict[str, str]:
    values = {
        "BIGBATCH_INTERFACE": site.interface,
        "BIGBATCH_HOST_SUFFIX": site.host_suffix,
        "BIGBATCH_NODE_TMP": site.node_tmp,
    }
    return {name: value for name, value in values.items() if value and not os.environ.get(name)}


def _ask(count: int, words: Sequence[str], python: str, env: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Each node's answer, and what went wrong."""
    python = os.path.abspath(python) if os.sep in python else python
    command = [python, "-m", "bigbatch.cluster.doctor.probe", *words]
    if env.get("SLURM_JOB_ID") and shutil.which("srun"):
        # -n and --ntasks-per-node: srun would otherwise inherit the allocation's numbers and double the tasks.
        command = ["srun", "--overlap", f"-N{count}", f"-n{count}", "--ntasks-per-node=1", *command]
    inner = {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_ROOT), env.get("PYTHONPATH")]))}
    inner.pop("SLURM_NTASKS_PER_NODE", None)
    try:
        # Run elsewhere: with -m Python first looks into the current folder, which may contain a cluster.py.
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, env=inner, cwd=IMPORT_ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{shlex.join(command[:1])}: {type(error).__name__}"
    answers = [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    said = [line for line in lines if not line.startswith("srun:")] or lines  # Python's word comes before srun's
    return sorted(answers, key=lambda answer: str(answer["host"])), said[-1] if done.returncode else ""


# Judging


def judge_slurm() -> Finding:
    """Whether Slurm answers."""
    if not slurm_commands.is_installed("scontrol"):
        return Finding(WARN, "Slurm", "scontrol is not on PATH", "Run this on a login node or inside a job.")
    try:
        config = slurm_commands.run("scontrol", "show", "config")
    except slurm_commands.SlurmError as error:
        return Finding(FAIL, "Slurm", str(error), "Try again later. If it persists, ask the site's support.")
    version = re.search(r"^SLURM_VERSION\s*=\s*(.*)", config, re.MULTILINE)
    return Finding(OK, "Slurm", f"version {version[1] if version else 'unknown'}")


def judge_nodes(nodes: Sequence[Mapping[str, Any]], expected: int, problem: str, in_job: bool) -> list[Finding]:
    """Judge the nodes' answers: subject → what was seen, and what is wrong with it."""
    if len(nodes) < expected:
        seen = f"{len(nodes)} of {expected}" + (f": {problem}" if problem else "")
        return [Finding(FAIL, "nodes answer", seen, "Try `srun -N … hostname`; all nodes must see the interpreter.")]
    findings = []
    for what in (subject for subject in nodes[0] if subject != "host"):
        values = _by_value((node["host"], node[what][0]) for node in nodes)
        wrong = _by_value((node["host"], node[what][1]) for node in nodes if node[what][1])
        if wrong or (what in ALIKE and len(values) > 1):
            # Only compute nodes need the packages; a login node may lack them.
            status = WARN if what == "python" and not in_job else FAIL
            findings.append(Finding(status, what, _listed(wrong or values), ADVICE[what]))
        else:
            findings.append(Finding(OK, what, next(iter(values)) if len(values) == 1 else _listed(values)))
    return findings


def _by_value(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host, value in pairs:
        found.setdefault(value, []).append(host)
    return found


def _listed(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in values.items())
