"""Judge the answers of an allocation's nodes (``bigbatch.cluster.doctor.probe``): one finding for each subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Answer = Mapping[str, Any]
"""What a node has answered, see ``probe``: JSON, of which each finding knows its part."""
OK, WARN, FAIL = "OK", "WARN", "FAIL"
GIB = 2**30
LONGEST_TMP = 12
"""Longest path of a temporary folder, in characters. The job's folder and Ray's sockets add up to 95, and the kernel
allows 107 (AF_UNIX)."""


@dataclass(frozen=True)
class Finding:
    """One result: OK, WARN or FAIL; its subject; what was seen; and advice."""

    status: str
    what: str
    seen: str
    advice: str = ""


def judge_answers(what: str, answers: Sequence[object], expected: int, problem: str) -> list[Finding]:
    """Whether all ``expected`` nodes answered; ``problem``: what went wrong."""
    if len(answers) >= expected:
        return [Finding(OK, what, f"{len(answers)} of {expected}")]
    advice = "Try `srun -N … hostname` in the job; the interpreter must be on a file system that all nodes see."
    return [Finding(FAIL, what, f"{len(answers)} of {expected}" + (f": {problem}" if problem else ""), advice)]


def judge_nodes(nodes: Sequence[Answer], mark: str, in_job: bool) -> list[Finding]:
    """Judge the facts of the nodes: one finding for each subject."""
    if not nodes:
        return []
    return [
        judge_python(nodes, in_job),
        _agree("packages", nodes, lambda node: _packages(node["packages"]), "Use one environment on a shared folder."),
        _agree("code", nodes, lambda node: f"files {node['code']}", "Run from one checkout on a shared folder."),
        judge_gpus(nodes),
        judge_tmp(nodes),
        judge_shared(nodes, mark),
        judge_space("shared space", [node["shared"] for node in nodes]),
        judge_space("node space", [node["tmp"] for node in nodes]),
    ]


def judge_python(nodes: Sequence[Answer], in_job: bool) -> Finding:
    """Whether all nodes have one suitable Python with the needed packages."""
    versions = _by_value((node["host"], node["python"]) for node in nodes)
    advice = "Write --python /path/to/environment/bin/python."
    if len(versions) > 1:
        return Finding(FAIL, "python", _unlike(versions), "Use one interpreter on a shared folder.")
    missing = [name for name in ("ray", "torch", "optuna") if not nodes[0]["packages"].get(name)]
    seen = f"{nodes[0]['python']} ({nodes[0]['executable']})"
    if missing:  # only the compute nodes need them; a login node may lack them
        return Finding(FAIL if in_job else WARN, "python", f"{seen}; without {', '.join(missing)}", advice)
    return Finding(OK, "python", seen)


def judge_gpus(nodes: Sequence[Answer]) -> Finding:
    """Whether processes see the GPUs that Slurm granted, and torch can use them."""
    unlike = []
    for node in nodes:
        gpus = node["gpus"]
        if gpus["granted"] is not None and gpus["seen"] != gpus["granted"]:
            unlike.append(f"{node['host']}: {gpus['granted']} granted, {gpus['seen']} seen")
    if unlike:
        advice = "Check CUDA_VISIBLE_DEVICES and nvidia-smi there; submit with --exclude=NODE and tell the site."
        return Finding(FAIL, "GPUs", "; ".join(unlike), advice)
    if refused := _by_value((node["host"], node["gpus"]["refused"]) for node in nodes if node["gpus"]["refused"]):
        advice = "Install a torch for these nodes' driver, see pytorch.org/get-started."
        return Finding(FAIL, "GPUs", f"torch can use none: {_unlike(refused)}", advice)
    return Finding(OK, "GPUs", ", ".join(f"{node['host']}: {node['gpus']['seen']}" for node in nodes))


def judge_tmp(nodes: Sequence[Answer]) -> Finding:
    """Whether the nodes' temporary folder can be used, and its path is short enough."""
    path = nodes[0]["tmp"]["path"]
    broken = [f"{node['host']}: {node['tmp']['error']}" for node in nodes if node["tmp"]["error"]]
    advice = (
        "Write node_tmp under [storage] in the site's profile, or set BIGBATCH_NODE_TMP: a short path, local to a node."
    )
    if broken:
        return Finding(FAIL, "temp folder", f"{path} cannot be used: {'; '.join(broken)}", advice)
    if len(path) > LONGEST_TMP:
        return Finding(FAIL, "temp folder", f"{path} has {len(path)} characters; at most {LONGEST_TMP} fit", advice)
    return Finding(OK, "temp folder", f"{path}, {len(path)} characters")


def judge_shared(nodes: Sequence[Answer], mark: str) -> Finding:
    """Whether all nodes see the shared folder and can write to it."""
    path = str(Path(nodes[0]["shared"]["path"]).parent)
    bad = [node["host"] for node in nodes if node["shared"]["mark"] != mark]
    advice = "Set BIGBATCH_HOME to a folder that all nodes see, e.g. in $WORK or $SCRATCH."
    if bad:
        return Finding(FAIL, "shared folder", f"{path} is another folder on {', '.join(bad)}", advice)
    broken = [f"{node['host']}: {node['shared']['error']}" for node in nodes if node["shared"]["error"]]
    if broken:
        return Finding(FAIL, "shared folder", f"{path} cannot be written: {'; '.join(broken)}", advice)
    return Finding(OK, "shared folder", path)


def judge_space(what: str, folders: Sequence[Answer]) -> Finding:
    """Whether the folders have room for checkpoints and logs."""
    known = [folder for folder in folders if folder["free_bytes"] is not None]
    if not known:
        return Finding(WARN, what, "not known")
    free = min(folder["free_bytes"] for folder in known)
    inodes = min((folder["free_inodes"] for folder in known if folder["free_inodes"] is not None), default=None)
    seen = f"{free / GIB:.1f} GiB and {'unlimited' if inodes is None else f'{inodes:,}'} files are free"
    if free < GIB / 4 or (inodes is not None and inodes < 1000):
        return Finding(FAIL, what, seen, "Remove old studies or ask for more room: checkpoints and logs need it.")
    if free < 5 * GIB or (inodes is not None and inodes < 10_000):
        return Finding(WARN, what, seen, "Checkpoints of large networks need more. Consider removing old studies.")
    return Finding(OK, what, seen)


def judge_allreduce(answers: Sequence[Answer], problem: str, expected: int) -> list[Finding]:
    """Whether torch can sum a tensor over all nodes, and how fast."""
    if answers and all(answer.get("error") == "torch is not installed" for answer in answers):
        return [Finding(WARN, "all-reduce", "torch is not installed", "Write --python of the training environment.")]
    failed = [f"{answer['host']}: {answer['error']}" for answer in answers if "error" in answer]
    if failed or len(answers) < expected:
        seen = "; ".join(failed) or f"{len(answers)} of {expected} nodes answered: {problem}"
        advice = (
            "Name the network's interface or host_suffix in the profile, or --exclude the node. NCCL_DEBUG=INFO tells "
            "more."
        )
        return [Finding(FAIL, "all-reduce", seen, advice)]
    backends = [name for name in ("gloo", "nccl") if all(name in answer for answer in answers)]
    speeds = [f"{name} {min(answer[name] for answer in answers):,.0f} MB/s" for name in backends]
    return [Finding(OK, "all-reduce", f"over {expected} nodes: {', '.join(speeds)}")]


def _agree(what: str, nodes: Sequence[Answer], value: Callable[[Answer], str], advice: str) -> Finding:
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
