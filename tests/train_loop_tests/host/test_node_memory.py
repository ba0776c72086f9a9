"""The node's memory: errors, and the counters of control groups."""

import errno
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.host.node_memory import count_memory_kills, is_node_memory_full


def test_a_full_host_is_recognized_by_what_python_and_torch_really_raise() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(1 << 50)
    with pytest.raises(MemoryError) as of_python:
        bytearray(1 << 60)
    assert is_node_memory_full(of_torch.value) and is_node_memory_full(of_python.value)
    assert is_node_memory_full(OSError(errno.ENOMEM, "Cannot allocate memory"))
    for other in (OSError(errno.ENOSPC, "full"), RuntimeError("CUDA out of memory"), ValueError("memory")):
        assert not is_node_memory_full(other)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernels_kills_are_counted_for_the_whole_job(tmp_path: Path) -> None:
    """Version 2 of control groups: the step's own group has killed nothing, another step of the job two processes."""
    job = "system.slice/slurmstepd.scope/job_77"
    own = tmp_path / "own"
    own.write_text(f"0::/{job}/step_0/user/task_0\n")
    write(tmp_path / job / "step_0/user/task_0/memory.events", "low 0\noom 0\noom_kill 0\n")
    write(tmp_path / job / "memory.events", "low 0\nmax 9\noom 3\noom_kill 2\n")
    write(tmp_path / "system.slice/memory.events", "oom_kill 100\n")  # other jobs' too
    assert count_memory_kills(tmp_path, own) == 2


def test_version_1_and_a_machine_that_does_not_say(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/slurm/uid_5/job_9/step_batch\n")
    write(tmp_path / "memory/slurm/uid_5/job_9/step_batch/memory.oom_control", "under_oom 0\noom_kill 1\n")
    assert count_memory_kills(tmp_path, own) == 1
    assert count_memory_kills(tmp_path / "nothing", own) == 0
    assert count_memory_kills(tmp_path, tmp_path / "absent") == 0
