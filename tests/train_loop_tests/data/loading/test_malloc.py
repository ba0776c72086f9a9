"""Freed memory is kept: counted by the page faults that the system counts for a process."""

import os
import platform
import subprocess
import sys

import pytest

from bigbatch.train_loop.data.loading.malloc import raise_malloc_thresholds

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the parameters are glibc's")

PROGRAM = """
import resource
import numpy as np
import torch
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.malloc import KEPT_FREE_BYTES, raise_malloc_thresholds

def count_faults(job, indices, pixels, places, ahead):
    "Of 15 rounds that take and free 5 MB in blocks."
    faults = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [b"x" * (1 << 20) for _ in range(5)]
        del blocks
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    pixels.view(-1)[:8].view(torch.int64)[0] = sum(faults[5:])

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

processes = ring.Ring(count_faults, workers=1, images=1, size=8)
(pixels,) = processes.read(None, [np.zeros(1, np.int64)], 8)
faults = int(pixels.reshape(-1)[:8].view(torch.int64)[0])
processes.close()
assert raise_malloc_thresholds()
before = resident()
large = b"x" * (3 * KEPT_FREE_BYTES)
grown = resident() - before
del large
print(faults, grown >> 20, resident() - before >> 20)
"""


def test_loader_processes_use_freed_blocks_again_and_give_larger_ones_back() -> None:
    """In a process that has not raised the thresholds itself: loader processes would have its own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=others, capture_output=True, text=True, check=True)
    faults, grown, left = map(int, done.stdout.split())
    assert faults < 15 * 5 * (1 << 20) / os.sysconf("SC_PAGESIZE") / 20
    assert grown >= 95 and left <= 1


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_"])
def test_parameters_of_the_user_stay(name: str) -> None:
    assert not raise_malloc_thresholds({name: "131072"})
