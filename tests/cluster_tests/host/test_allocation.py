"""What was granted, not what the host shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbatch.cluster.host.allocation import (
    accelerator_files,
    slurm_job,
    usable_cpus,
    usable_memory_bytes,
)

HERE = len(os.sched_getaffinity(0))
HOST_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    return tmp_path


def test_cpus_are_the_smallest_of_affinity_slurm_and_control_group(cgroup):
    assert usable_cpus({}, cgroup) == HERE
    job = {"SLURM_JOB_ID": "7"}
    assert usable_cpus({**job, "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "64"}, cgroup) == 1
    assert usable_cpus({**job, "SLURM_CPUS_ON_NODE": "1"}, cgroup) == 1
    assert usable_cpus({**job, "SLURM_CPUS_PER_TASK": "4096"}, cgroup) == HERE
    assert usable_cpus({"SLURM_CPUS_PER_TASK": "1"}, cgroup) == HERE, "left over from another shell, not a job"
    (cgroup / "cpu.max").write_text("150000 100000\n")
    assert usable_cpus({}, cgroup) == 1
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert usable_cpus({}, cgroup) == HERE


def test_cpus_of_a_version_1_control_group(cgroup):
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus({}, cgroup) == 1
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cpus({}, cgroup) == HERE


def test_memory_is_what_slurm_or_the_control_group_grants(cgroup):
    assert usable_memory_bytes({}, cgroup) == HOST_MEMORY
    assert usable_memory_bytes({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "1000"}, cgroup) == 1000 * 2**20
    per_cpu = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "1"}
    assert usable_memory_bytes(per_cpu, cgroup) == 100 * 2**20
    (cgroup / "memory.max").write_text("12345678\n")
    assert usable_memory_bytes({}, cgroup) == 12345678
    (cgroup / "memory.max").write_text("max\n")
    assert usable_memory_bytes({}, cgroup) == HOST_MEMORY


def test_the_job_around_the_process():
    assert slurm_job({}) is None
    env = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "x", "SLURM_JOB_NUM_NODES": "3", "SLURM_RESTART_COUNT": "2"}
    job = slurm_job(env)
    assert job is not None and (job.job_id, job.nodes, job.restart_count, job.account) == ("42", 3, 2, None)


def test_device_files_hint_at_accelerators(tmp_path):
    assert accelerator_files(tmp_path) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert [Path(p).name for p in accelerator_files(tmp_path)] == ["nvidia0", "nvidia1"]
