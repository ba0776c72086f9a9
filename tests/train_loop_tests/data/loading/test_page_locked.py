"""The loader's slots are page-locked; where CUDA refuses, training goes on, and one line says so."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.data.loading.ring import Slots
from bigbatch.train_loop.data.loading.upload import page_lock
from helpers.processes import clean_environment


class Runtime:
    """CUDA's runtime as far as it is used: it keeps an error until ``cudaGetLastError`` takes it."""

    def __init__(self, answers: list[int]) -> None:
        self.answers, self.last, self.locked = answers, 0, list[int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        answer = self.answers.pop(0)
        self.last = answer or self.last
        self.locked += [] if answer else [address]
        return answer

    def cudaHostUnregister(self, address: int) -> int:
        assert f"{address:x}-" in Path("/proc/self/maps").read_text(), "it is not mapped any more"
        self.locked.remove(address)
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return {2: "out of memory"}[error]

    def cudaGetLastError(self) -> int:
        last, self.last = self.last, 0
        return last


def installed(patch: pytest.MonkeyPatch, *answers: int) -> Runtime:
    runtime = Runtime(list(answers))
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "cudart", lambda: runtime)
    patch.setattr(ctypes, "CDLL", lambda name: runtime)
    return runtime


def pages(count: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, count * mmap.PAGESIZE), np.uint8)


def test_slots_are_locked_until_the_last_batch_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, slots = installed(monkeypatch, 0), Slots(count=2, images=4, image_bytes=3)
    page_lock(slots.memory)
    batch = torch.from_numpy(slots.pixels(1, 4, 1))[1:]
    del slots
    assert len(runtime.locked) == 1
    del batch
    assert not runtime.locked


def test_a_refusal_leaves_no_error_for_the_next_kernel_and_is_said(monkeypatch, caplog):
    runtime = installed(monkeypatch, 2)
    page_lock(pages(1))
    assert runtime.last == 0, "torch would raise it at the next kernel"
    assert "(out of memory)" in caplog.text and "--set data.loader.pin_memory=false" in caplog.text


FORKED = """
import os, sys
import numpy as np
import torch
from bigbatch.train_loop.data.loading.upload import page_lock

page_lock(np.zeros(4096, np.uint8))
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(torch.cuda._is_in_bad_fork())
"""


def test_a_process_that_has_a_loader_and_no_cuda_leaves_cuda_to_its_children() -> None:
    """torch refuses CUDA to the children of a process that has asked whether there is a GPU."""
    assert subprocess.run([sys.executable, "-c", FORKED], env=clean_environment()).returncode == 0


@pytest.mark.gpu
def test_a_gpu_goes_on_after_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """CUDA refuses memory that is locked already."""
    ones, memory = torch.ones(3, device="cuda"), pages(16)
    for _ in range(3):
        page_lock(memory)
    assert (ones + 1).sum().item() == 6 and len(caplog.records) == 2
