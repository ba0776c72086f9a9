"""What was granted, not what the host shows."""

import os
from pathlib import Path

from bigbatch.cluster.host.allocation import accelerator_files, slurm_job, usable_cpus, usable_memory_bytes

HERE = len(os.sched_getaffinity(0))
HOST_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_cpus_are_the_smallest_of_affinity_slurm_and_control_group(tmp_path):
    assert usable_cpus({}, tmp_path) == HERE
    job = {"SLURM_JOB_ID": "7"}
    assert usable_cpus({**job, "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "64"}, tmp_path) == 1
    assert usable_cpus({**job, "SLURM_CPUS_ON_NODE": "1"}, tmp_path) == 1
    assert usable_cpus({**job, "SLURM_CPUS_PER_TASK": "4096"}, tmp_path) == HERE
    assert usable_cpus({"SLURM_CPUS_PER_TASK": "1"}, tmp_path) == HERE, "left over from another shell, not a job"
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert usable_cpus({}, tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cpus({}, tmp_path) == HERE


def test_cpus_of_a_version_1_control_group(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus({}, tmp_path) == 1
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cpus({}, tmp_path) == HERE


def test_memory_is_what_slurm_or_the_control_group_grants(tmp_path):
    assert usable_memory_bytes({}, tmp_path) == HOST_MEMORY
    assert usable_memory_bytes({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "1000"}, tmp_path) == 1000 * 2**20
    per_cpu = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "1"}
    assert usable_memory_bytes(per_cpu, tmp_path) == 100 * 2**20
    (tmp_path / "memory.max").write_text("12345678\n")
    assert usable_memory_bytes({}, tmp_path) == 12345678
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory_bytes({}, tmp_path) == HOST_MEMORY


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
