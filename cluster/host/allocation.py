"""The resources that this process may use: CPUs, memory, and the Slurm job around it.

The host shows all its cores and memory, but Slurm grants a job only a part. The functions here return the granted part.
from Slurm's variables, then from the control group, then from the CPU affinity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host import slurm_commands

CGROUP = Path("/sys/fs/cgroup")
START_ANSWER_S = 10.0
"""Seconds to wait for Slurm's answer when the job began."""
PLANNED_NODES = "BIGBATCH_PLANNED_NODES"
"""The nodes of a search's job, which only the check of the search reads: ``4x24c2g`` is 4 nodes of 24 CPUs, 2 GPUs."""


@dataclass(frozen=True)
class SlurmJob:
    """The Slurm job around this process, read from the environment."""

    job_id: str
    node_list: str | None
    nodes: int | None
    partition: str | None
    account: str | None
    restart_count: int


def slurm_job(env: Mapping[str, str] = os.environ) -> SlurmJob | None:
    """The job around this process; None outside a job."""
    job_id = env.get("SLURM_JOB_ID")
    if not job_id:
        return None
    return SlurmJob(
        job_id=job_id,
        node_list=env.get("SLURM_JOB_NODELIST"),
        nodes=slurm_commands.least_count(env.get("SLURM_JOB_NUM_NODES")),
        partition=env.get("SLURM_JOB_PARTITION"),
        account=env.get("SLURM_JOB_ACCOUNT"),
        restart_count=slurm_commands.read_count(env.get("SLURM_RESTART_COUNT")) or 0,
    )


def job_start(env: Mapping[str, str] = os.environ) -> tuple[str, float] | None:
    """The start of the job around this process: its name, ``ID.RESTART``, and when Slurm began to bill it.

    The time is in seconds since the epoch. A requeued job begins anew. None outside a job, or if Slurm does not tell
    the time. Slurm 22.05 does not set the variable, so this asks Slurm.
    """
    job = slurm_job(env)
    if job is None:
        return None
    began = slurm_commands.seconds_since_epoch(env.get("SLURM_JOB_START_TIME"))
    if began is None:
        try:
            fields = slurm_commands.job_fields(job.job_id, timeout_s=START_ANSWER_S)
        except slurm_commands.SlurmError:
            return None
        began = slurm_commands.seconds_since_epoch(fields.get("StartTime"))
    return None if began is None else (f"{job.job_id}.{job.restart_count}", began)


def usable_cpus(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> int:
    """CPUs that this process may use on this node, at least 1.

    The smallest of: ``SLURM_CPUS_PER_TASK`` (else ``SLURM_CPUS_ON_NODE``), the control group's quota, and the affinity
    mask. The mask alone is not enough: without core binding, Slurm lets it include all cores.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    names = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
    granted = next(filter(None, (slurm_commands.read_count(env.get(name)) for name in names)), None)
    if granted and env.get("SLURM_JOB_ID"):
        limits.append(granted)
    quota = _cgroup_cpu_quota(cgroup)
    if quota:
        limits.append(max(1, int(quota)))
    return max(1, min(limits))


def usable_memory_bytes(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> int:
    """Bytes of memory that are granted to this process on this node, used or free."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if env.get("SLURM_JOB_ID"):
        per_node = slurm_commands.memory_bytes(env.get("SLURM_MEM_PER_NODE"))
        per_cpu = slurm_commands.memory_bytes(env.get("SLURM_MEM_PER_CPU"))
        if per_node:
            limits.append(per_node)
        elif per_cpu:
            limits.append(per_cpu * usable_cpus(env, cgroup))
    # Version 2 of the control groups, then version 1.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(_read(cgroup / name))
        if limit:
            limits.append(limit)
    return min(limits)


def granted_gpus(env: Mapping[str, str] = os.environ) -> int:
    """The number of GPUs that Slurm has granted to this step on this node; 0 if it has bound none."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        if name in env:
            return slurm_commands.count_listed_devices(env[name])
    return slurm_commands.granted_gpus_here(env) or 0


def accelerator_files(dev: Path = Path("/dev")) -> list[str]:
    """Device files that hint at an accelerator. If there are none, there is no need to load torch and ask it."""
    return sorted(str(p) for pattern in ("nvidia[0-9]*", "kfd", "dxg") for p in dev.glob(pattern))


def _cgroup_cpu_quota(cgroup: Path) -> float | None:
    """CPUs of the control group's quota (version 2, then 1); None: no limit."""
    fields = _read(cgroup / "cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit():
        return int(fields[0]) / int(fields[1])
    quota = _number(_read(cgroup / "cpu/cpu.cfs_quota_us"))
    period = _number(_read(cgroup / "cpu/cpu.cfs_period_us"))
    return quota / period if quota and period else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def planned_nodes() -> tuple[int, int, int] | None:
    """While this process checks a search for a job: the job's nodes, and the CPUs and GPUs of each. Else None."""
    match = re.fullmatch(r"(\d+)x(\d+)c(\d+)g", os.environ.get(PLANNED_NODES, ""))
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
