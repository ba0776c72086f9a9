"""Freed memory is kept: counted by the page faults that the system counts for a process."""

import functools
import os
import platform
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.malloc import raise_malloc_thresholds

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the parameters are glibc's")

PROGRAM = """
import resource, sys
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.malloc import KEPT_FREE_BYTES, raise_malloc_thresholds

MB = 1 << 20

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "kept":
    assert raise_malloc_thresholds()
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * MB for _ in range(5)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
before = resident()
large = b"x" * (3 * KEPT_FREE_BYTES)
grown = resident() - before
del large
print(sum(faults[5:]), grown // MB, (resident() - before) // MB)
"""


@functools.cache
def run(how: str, **env: str) -> tuple[int, int, int]:
    """Faults of 15 rounds that take and free 5 MB in blocks; MB that a large block takes, and leaves."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=others | env, capture_output=True, text=True, check=True)
    faults, grown, left = map(int, done.stdout.split())
    return faults, grown, left


def test_freed_blocks_are_used_again_without_page_faults() -> None:
    pages = 15 * 5 * (1 << 20) // os.sysconf("SC_PAGESIZE")
    assert run("as it is", MALLOC_TRIM_THRESHOLD_="131072")[0] > pages / 2  # what an allocator that keeps nothing costs
    assert run("kept")[0] < pages / 20


def test_what_is_larger_than_is_kept_goes_back_to_the_system() -> None:
    _, grown, left = run("kept")
    assert grown >= 95
    assert left <= 1


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_"])
def test_parameters_of_the_user_stay(name: str) -> None:
    assert not raise_malloc_thresholds({name: "131072"})


def count_faults(
    job: Any, indices: npt.NDArray[np.int64], pixels: torch.Tensor, places: range, ahead: Any
) -> list[ring.BadImage]:
    faults = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [b"x" * (1 << 20) for _ in range(5)]
        del blocks
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return [(places.start, None, str(sum(faults[5:])))]


@pytest.mark.skipif(not raise_malloc_thresholds(), reason="glibc's parameters are set in the environment")
def test_loader_processes_keep_what_they_free() -> None:
    processes = ring.Ring(count_faults, workers=1, images=1, size=8)
    try:
        [(_, [(_, _, faults)])] = processes.read(None, [np.zeros(1, np.int64)], 8)
    finally:
        processes.close()
    assert int(faults) < 15 * 5 * (1 << 20) / os.sysconf("SC_PAGESIZE") / 20
