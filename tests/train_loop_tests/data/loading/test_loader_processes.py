"""Loader processes that hang before their first line are started again."""

import mmap
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.data.loading import loader_processes
from bigbatch.train_loop.data.loading.ring import Ring
from bigbatch.train_loop.errors import LoaderError
from helpers.rings import JOB, SIZE, batches_of, expected, filler

FORK = multiprocessing.get_context("fork")
forks_to_hang = mmap.mmap(-1, mmap.PAGESIZE)
"""Shared with all forks. Its first byte: how many of the next ones hang before their first line."""


def _hang_in_child() -> None:
    if forks_to_hang[0]:
        forks_to_hang[0] -= 1
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            signal.pause()


os.register_at_fork(after_in_child=_hang_in_child)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loader_processes, "BEGIN_S", 0.5)
    yield
    forks_to_hang[0] = 0


@pytest.mark.parametrize(("workers", "hang"), [(1, 1), (1, 3), (3, 2)])
def test_a_process_that_hangs_at_its_fork_is_started_again(folder, workers, hang, caplog):
    fill, batches = filler(folder), batches_of(7, 7, 1, 7)
    wanted = expected(fill, JOB, batches)
    forks_to_hang[0] = hang
    ring = Ring(fill, workers, 7, SIZE, context=FORK)
    for _ in range(2):
        found = [pixels for pixels, bad in ring.read(JOB, batches, SIZE) if not bad]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    if workers == 1:
        assert caplog.text.count("did not begin and is started again") == hang
    pids = [process.pid for process in ring.processes]
    ring.close()
    assert all(not _exists(pid) for pid in pids if pid is not None)


def test_processes_that_never_begin_are_an_error_that_says_what_to_do(folder: Path) -> None:
    forks_to_hang[0] = 100
    ring = Ring(filler(folder), 1, 7, SIZE, context=FORK)
    with pytest.raises(LoaderError, match=r"did not begin in 4 attempts\. Write data\.loader\.workers=0"):
        list(ring.read(JOB, batches_of(7), SIZE))
    ring.close()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
