"""``bigbatch cluster doctor``: what would keep a search from running here, before a GPU hour is spent on it.

On a login node it looks at that machine and asks Slurm; inside an allocation it looks at every node and at
what is between them. Where a part is missing (no git, no torch, no quota command) the rest is still checked.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import probe, quota, record, slurm
from cluster.command_line import parser
from cluster.sites import GENERIC, Site, find

OK, WARN, FAIL = "OK", "WARN", "FAIL"
MARK = "BIGBATCH-PROBE "
STEP_S = 180.0
MIN_PYTHON = (3, 11)
GIB = 2**30
LONGEST_TMP = 12
"""Characters. The job's folder and Ray's sockets lie up to 95 below, and the kernel takes 107 (AF_UNIX)."""


@dataclass(frozen=True)
class Finding:
    status: str
    what: str
    seen: str
    advice: str = ""


def doctor_main(argv: Sequence[str]) -> int:
    """Print every finding. Returns 1 if one is FAIL."""
    p = parser("doctor", "Check this machine, or the nodes of this allocation.")
    p.add_argument("--site", metavar="NAME|FILE.toml", help="the site's profile (default: found)")
    p.add_argument("--shared", metavar="DIR", help="the folder that all nodes must see (default: BIGBATCH_HOME)")
    p.add_argument("--python", metavar="PATH", help="the nodes' interpreter (default: BIGBATCH_PYTHON, else this one)")
    p.add_argument("--json", action="store_true", help="a line of JSON for each finding")
    args = p.parse_args(argv)
    findings = examine(find(args.site), shared=args.shared, python=args.python)
    for finding in findings:
        print(json.dumps(vars(finding)) if args.json else as_text(finding), flush=True)
    counts = {status: sum(finding.status == status for finding in findings) for status in (OK, WARN, FAIL)}
    if not args.json:
        print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts[FAIL] else 0


def as_text(finding: Finding) -> str:
    line = f"{finding.status:5}{finding.what:15}{finding.seen}"
    return f"{line}\n     {'':15}→ {finding.advice}" if finding.advice else line


def examine(
    site: Site, *, shared: str | None = None, python: str | None = None, env: Mapping[str, str] | None = None
) -> list[Finding]:
    """Every finding, of this machine or of all nodes of the allocation around this process."""
    env = {**(os.environ if env is None else env), **_network(site)}
    python = python or env.get("BIGBATCH_PYTHON") or sys.executable
    findings = [judge_site(site), *judge_slurm(site)]
    folder, problem = _workplace(Path(shared) if shared else record.home(env))
    if folder is None:
        return [*findings, Finding(FAIL, "shared folder", problem, "Write --shared, or set BIGBATCH_HOME.")]
    try:
        with (folder / "lock").open("a") as lock:
            held = _hold(lock.fileno())
            mark = os.urandom(8).hex()
            (folder / "mark").write_text(mark)
            nodes, problems = _ask("facts", folder, python, env)
        expected = int(env.get("SLURM_JOB_NUM_NODES") or 1) if env.get("SLURM_JOB_ID") else 1
        findings += judge_answers("nodes answer", nodes, expected, problems)
        findings += judge_nodes(nodes, mark, held, in_job=bool(env.get("SLURM_JOB_ID")))
        is_shared = all(node["shared"]["mark"] == mark for node in nodes)  # else they could not find each other
        if expected > 1 and len(nodes) == expected and is_shared:
            findings += judge_exchange(*_ask("exchange", folder, python, env), expected)
            findings += judge_allreduce(*_ask("allreduce", folder, python, env), expected)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [*findings, *judge_scratch(site), judge_privacy(record.home(env)), *judge_quota_command(site)]


def _network(site: Site) -> dict[str, str]:
    values = {
        "BIGBATCH_INTERFACE": site.interface,
        "BIGBATCH_HOST_SUFFIX": site.host_suffix,
        "BIGBATCH_NODE_TMP": site.node_tmp,
    }
    return {name: value for name, value in values.items() if value and not os.environ.get(name)}


def _workplace(shared: Path) -> tuple[Path | None, str]:
    try:
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Path(tempfile.mkdtemp(prefix=".doctor-", dir=shared)), ""
    except OSError as error:
        return None, f"{shared}: {error.strerror}"


def _hold(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# Asking


def _ask(what: str, folder: Path, python: str, env: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Each node's answer, and what went wrong on the way."""
    command = [python, "-m", "cluster.probe", what, str(folder)]
    if env.get("SLURM_JOB_ID") and shutil.which("srun"):
        count = env.get("SLURM_JOB_NUM_NODES") or "1"
        # -n and --ntasks-per-node: the allocation's own numbers would be inherited, and tasks doubled.
        command = ["srun", "--overlap", f"-N{count}", f"-n{count}", "--ntasks-per-node=1", *command]
    inner = {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(probe.ROOT), env.get("PYTHONPATH")]))}
    inner.pop("SLURM_NTASKS_PER_NODE", None)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, env=inner)
    except (OSError, subprocess.TimeoutExpired) as error:
        partial = getattr(error, "stdout", None) or b""
        text = partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        return _answers(text), f"{shlex.join(command[:1])}: {type(error).__name__}"
    lines = done.stderr.strip().splitlines()
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


# Judging


def judge_site(site: Site) -> Finding:
    if site.name == GENERIC:
        advice = "Limits are asked from Slurm. docs/submitting.md shows a profile of ten lines."
        return Finding(OK, "site", "no profile matches this machine", advice)
    return Finding(OK, "site", f"{site.name} ({site.path})")


def judge_slurm(site: Site) -> list[Finding]:
    if not slurm.available("scontrol"):
        return [Finding(WARN, "Slurm", "scontrol is not on PATH", "Run this on a login node or inside a job.")]
    try:
        text = slurm.run("scontrol", "show", "config")
    except slurm.SlurmError as error:
        return [Finding(FAIL, "Slurm", str(error), "Ask again later; if it stays, ask the site's support.")]
    config = dict(line.split("=", 1) for line in text.replace(" = ", "=").splitlines() if "=" in line)
    config = {key.strip(): value.strip() for key, value in config.items()}
    findings = [Finding(OK, "Slurm", f"version {config.get('SLURM_VERSION', 'unknown')}")]
    if config.get("JobRequeue") == "0":
        advice = "" if not site.requeue else "Submit with --chain, and write requeue = false in the site's profile."
        findings.append(
            Finding(WARN if advice else OK, "requeue", "JobRequeue is 0: jobs start no second time", advice)
        )
    elif not site.requeue:
        findings.append(Finding(OK, "requeue", "forbidden by the profile: jobs submit their successor"))
    else:
        findings.append(Finding(OK, "requeue", "jobs may requeue"))
    wait = config.get("KillWait", "").split()
    if wait and wait[0].isdigit() and int(wait[0]) < 10:
        advice = "Submit with a --signal early enough to write a checkpoint."
        findings.append(Finding(WARN, "signal", f"a cancelled job is killed after {wait[0]} s (KillWait)", advice))
    return findings


def judge_answers(what: str, answers: Sequence[object], expected: int, problem: str) -> list[Finding]:
    if len(answers) >= expected:
        return [Finding(OK, what, f"{len(answers)} of {expected}")]
    advice = "Try `srun -N … hostname` in the job; the interpreter must be on a file system that all nodes see."
    return [Finding(FAIL, what, f"{len(answers)} of {expected}" + (f": {problem}" if problem else ""), advice)]


def judge_nodes(nodes: Sequence[Mapping[str, Any]], mark: str, lock_held: bool, in_job: bool) -> list[Finding]:
    """What the facts of the nodes say, one finding a subject."""
    if not nodes:
        return []
    return [
        judge_python(nodes, in_job),
        _agree("packages", nodes, lambda node: _packages(node["packages"]), "Use one environment on a shared folder."),
        _agree(
            "code", nodes, lambda node: f"{(node['commit'] or 'no commit')[:10]}, files {node['code']}",
            "Run from one checkout on a shared folder.",
        ),
        judge_gpus(nodes),
        judge_ports(nodes),
        judge_tmp(nodes),
        judge_shared(nodes, mark),
        judge_lock(nodes, lock_held),
        judge_space("shared space", [node["shared"] for node in nodes]),
        judge_space("node space", [node["tmp"] for node in nodes]),
        judge_leaked(nodes),
    ]  # fmt: skip


def judge_python(nodes: Sequence[Mapping[str, Any]], in_job: bool) -> Finding:
    versions = _by_value((node["host"], node["python"]) for node in nodes)
    advice = "Write --python /path/to/environment/bin/python."
    if len(versions) > 1:
        return Finding(FAIL, "python", _unlike(versions), "Use one interpreter on a shared folder.")
    missing = [name for name in ("ray", "torch", "optuna") if not nodes[0]["packages"].get(name)]
    old = tuple(map(int, nodes[0]["python"].split(".")[:2])) < MIN_PYTHON
    seen = f"{nodes[0]['python']} ({nodes[0]['executable']})"
    if old or missing:
        problem = f"; without {', '.join(missing)}" if missing else "; BigBatch needs 3.11"
        # A login node may do without: only the nodes need it.
        return Finding(FAIL if in_job else WARN, "python", seen + problem, advice)
    return Finding(OK, "python", seen)


def judge_gpus(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    unlike = []
    for node in nodes:
        gpus = node["gpus"]
        if gpus["granted"] is not None and gpus["seen"] != gpus["granted"]:
            unlike.append(f"{node['host']}: {gpus['granted']} granted, {gpus['seen']} seen")
        elif gpus["files"] and gpus["driver"] == 0:
            unlike.append(f"{node['host']}: {gpus['files']} device files, the driver lists none")
    if unlike:
        advice = "Look at CUDA_VISIBLE_DEVICES and nvidia-smi there; submit with --exclude=NODE and tell the site."
        return Finding(FAIL, "GPUs", "; ".join(unlike), advice)
    seen = ", ".join(f"{node['host']}: {node['gpus']['seen']}" for node in nodes)
    if any(node["gpus"]["seen"] and not node["gpus"]["files"] and node["gpus"]["driver"] is None for node in nodes):
        advice = "Neither /dev/nvidia* nor nvidia-smi is there. On other makers' GPUs ask torch.cuda.device_count()."
        return Finding(WARN, "GPUs", f"{seen}, by Slurm's word only", advice)
    return Finding(OK, "GPUs", seen)


def judge_ports(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    ranges = f"{probe.PORTS.start}–{probe.PORTS.stop - 1}"
    poor = [f"{n['host']}: {n['ports']['free']} of {n['ports']['tried']}" for n in nodes if n["ports"]["free"] < 40]
    if poor:
        advice = "Something takes ports there: see `ss -ltn`. Jobs look for others, which takes longer."
        return Finding(WARN, "ports", f"few of {ranges} are free: {'; '.join(poor)}", advice)
    return Finding(OK, "ports", f"{ranges} are free, by samples")


def judge_tmp(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    path = nodes[0]["tmp"]["path"]
    broken = [f"{node['host']}: {node['tmp']['error']}" for node in nodes if node["tmp"]["error"]]
    advice = (
        "Write node_tmp under [storage] of the site's profile, or set BIGBATCH_NODE_TMP: short, and local to a node."
    )
    if broken:
        return Finding(FAIL, "temp folder", f"{path} cannot be used: {'; '.join(broken)}", advice)
    if len(path) > LONGEST_TMP:
        return Finding(FAIL, "temp folder", f"{path} has {len(path)} characters, {LONGEST_TMP} fit", advice)
    return Finding(OK, "temp folder", f"{path}, {len(path)} characters")


def judge_shared(nodes: Sequence[Mapping[str, Any]], mark: str) -> Finding:
    path = str(Path(nodes[0]["shared"]["path"]).parent)
    bad = [node["host"] for node in nodes if node["shared"]["mark"] != mark]
    advice = "Set BIGBATCH_HOME to a folder that all nodes see, e.g. in $WORK or $SCRATCH."
    if bad:
        return Finding(FAIL, "shared folder", f"{path} is another one on {', '.join(bad)}", advice)
    broken = [f"{node['host']}: {node['shared']['error']}" for node in nodes if node["shared"]["error"]]
    if broken:
        return Finding(FAIL, "shared folder", f"{path} cannot be written: {'; '.join(broken)}", advice)
    return Finding(OK, "shared folder", path)


def judge_lock(nodes: Sequence[Mapping[str, Any]], held: bool) -> Finding:
    advice = "Two drivers of one study would not be kept apart: start only one. flock may be a mount option (Lustre)."
    if not held:
        return Finding(WARN, "locks", "the shared folder's file system has none", advice)
    other = [f"{node['host']}: {node['lock']}" for node in nodes if node["lock"] != "refused"]
    if other:
        return Finding(WARN, "locks", f"a lock held here does not count on {'; '.join(other)}", advice)
    return Finding(OK, "locks", "a lock held here is respected by every node")


def judge_space(what: str, folders: Sequence[Mapping[str, Any]]) -> Finding:
    known = [folder for folder in folders if folder["free_bytes"] is not None]
    if not known:
        return Finding(WARN, what, "not known")
    free = min(folder["free_bytes"] for folder in known)
    inodes = min((folder["free_inodes"] for folder in known if folder["free_inodes"] is not None), default=None)
    seen = f"{free / GIB:.1f} GiB and {'unlimited' if inodes is None else f'{inodes:,}'} files are free"
    if free < GIB / 4 or (inodes is not None and inodes < 1000):
        return Finding(FAIL, what, seen, "Remove old studies or ask for more: a search writes checkpoints and logs.")
    if free < 5 * GIB or (inodes is not None and inodes < 10_000):
        return Finding(WARN, what, seen, "Checkpoints of large networks take more. Look at old studies.")
    return Finding(OK, what, seen)


def judge_leaked(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    leaked = [f"{node['host']}: {', '.join(node['leaked'])}" for node in nodes if node["leaked"]]
    if leaked:
        return Finding(
            WARN, "leaked", f"Ray's processes of other or ended jobs: {'; '.join(leaked)}",
            "If no other job of yours runs on these nodes, end them there by their number.",
        )  # fmt: skip
    return Finding(OK, "leaked", "no processes of earlier jobs")


def judge_exchange(answers: Sequence[Mapping[str, Any]], problem: str, expected: int) -> list[Finding]:
    advice = "Name the right network in the profile ([network] interface or host_suffix), or --exclude the node."
    if len(answers) < expected:
        return [Finding(FAIL, "network", f"{len(answers)} of {expected} nodes answered: {problem}", advice)]
    failed = [f"{answer['host']}: {answer['error']}" for answer in answers if "error" in answer]
    own = [
        f"{answer['host']} is {answer['address']}" for answer in answers if answer.get("address", "").startswith("127.")
    ]
    if failed or own:
        return [Finding(FAIL, "network", "; ".join(failed or own), advice)]
    speeds = [(answer["mb_per_s"], answer["host"]) for answer in answers if "mb_per_s" in answer]
    slow, host = min(speeds)
    status = WARN if slow < 100 else OK
    seen = f"at least {slow:,.0f} MB/s (TCP, from {host})"
    return [Finding(status, "network", seen, advice if status == WARN else ""), judge_clocks(answers)]


def judge_clocks(answers: Sequence[Mapping[str, Any]]) -> Finding:
    skew, host = max((abs(answer["skew_s"]), answer["host"]) for answer in answers if "skew_s" in answer)
    seen = f"differ by at most {skew:.2f} s ({host})"
    if skew > 2:
        return Finding(
            FAIL if skew > 60 else WARN, "clocks", seen, "Tell the site; time limits and leases depend on it."
        )
    return Finding(OK, "clocks", seen)


def judge_allreduce(answers: Sequence[Mapping[str, Any]], problem: str, expected: int) -> list[Finding]:
    if answers and all(answer.get("error") == "torch is not installed" for answer in answers):
        return [Finding(WARN, "all-reduce", "torch is not installed", "Write --python of the training environment.")]
    failed = [f"{answer['host']}: {answer['error']}" for answer in answers if "error" in answer]
    if failed or len(answers) < expected:
        seen = "; ".join(failed) or f"{len(answers)} of {expected} nodes answered: {problem}"
        advice = "Try NCCL_DEBUG=INFO; name the network's interface in the profile."
        return [Finding(FAIL, "all-reduce", seen, advice)]
    backends = [name for name in ("gloo", "nccl") if all(name in answer for answer in answers)]
    speeds = [f"{name} {min(answer[name] for answer in answers):,.0f} MB/s" for name in backends]
    return [Finding(OK, "all-reduce", f"over {expected} nodes: {', '.join(speeds)}")]


def judge_privacy(home: Path) -> Finding:
    """Tokens lie below: nobody else may enter."""
    try:
        mode = stat.S_IMODE(home.stat().st_mode)
    except OSError:
        return Finding(OK, "privacy", f"{home} is not there yet")
    if mode & 0o077:
        return Finding(
            WARN, "privacy", f"others may enter {home} (mode {mode:o})", f"chmod 700 {shlex.quote(str(home))}"
        )
    return Finding(OK, "privacy", f"{home} is yours only")


def judge_scratch(site: Site) -> list[Finding]:
    """The site's folder for data and studies, as its profile names it."""
    if not site.scratch:
        return []
    path = os.path.expandvars(site.scratch)
    if "$" in path or not os.path.isdir(path):
        return [Finding(WARN, "scratch", f"{site.scratch} is not set or not there", "Is a project activated?")]
    finding = judge_space("scratch", [probe.space(Path(path))])
    return [Finding(finding.status, finding.what, f"{path}: {finding.seen}", finding.advice)]


def judge_quota_command(site: Site) -> list[Finding]:
    if not site.quota_command:
        return []
    try:
        lines = quota.ask(site)
    except quota.NoAnswer as error:
        return [Finding(WARN, "quota", f"{site.quota_command} on {socket.gethostname()}: {error}", "Run it yourself.")]
    return [Finding(OK, "quota", f"{site.quota_command}: " + " / ".join(lines))]


def _agree(what: str, nodes: Sequence[Mapping[str, Any]], value: Any, advice: str) -> Finding:
    values = _by_value((node["host"], value(node)) for node in nodes)
    if len(values) > 1:
        return Finding(FAIL, what, _unlike(values), advice)
    return Finding(OK, what, next(iter(values)))


def _by_value(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host, value in pairs:
        found.setdefault(value, []).append(host)
    return found


def _unlike(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in values.items())


def _packages(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version) or "none"
