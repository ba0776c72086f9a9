"""Loader processes and their shared slots: what they bring, and how they end."""

import functools
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.loading import ring as ring_module
from bigbatch.train_loop.data.loading.loader import BatchFiller, ReadPurpose
from bigbatch.train_loop.data.loading.ring import Ring
from bigbatch.train_loop.data.sets.folder import FolderImages
from bigbatch.train_loop.data.sets.scan import scan_folder
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.errors import LoaderError
from helpers.packed_sets import same
from helpers.paths import ROOT
from helpers.waiting import wait_until

pytestmark = pytest.mark.without_ray
SIZE = 16
JOB = ReadPurpose(False, Epoch(3, 4))


def batches_of(*sizes: int) -> list[np.ndarray]:
    draws = np.random.default_rng(1)
    return [draws.integers(0, 40, size) for size in sizes]


def filler(folder: Path) -> BatchFiller:
    scan = scan_folder(str(folder))
    return BatchFiller(FolderImages(scan.train), FolderImages(scan.val), len(scan.train.labels))


def expected(fill: BatchFiller, job: ReadPurpose, batches: list[np.ndarray]) -> list[torch.Tensor]:
    found = []
    for indices in batches:
        found.append(torch.empty((len(indices), SIZE, SIZE, 3), dtype=torch.uint8))
        fill(job, indices, found[-1], range(len(indices)), indices)
    return found


def test_batches_are_those_of_this_process(folder: Path) -> None:
    fill, batches = filler(folder), batches_of(7, 7, 1, 7, 3, 7, 7, 7)
    wanted = expected(fill, JOB, batches)
    ring = Ring(fill, 2, 7, SIZE)
    for _ in range(2):  # the same processes for the next epoch
        pids = [process.pid for process in ring.processes]
        seen = 0
        for pixels, want in zip(ring.read(JOB, batches, SIZE), wanted, strict=True):
            assert torch.equal(pixels, want)
            seen += 1
        assert seen == len(batches) and pids == [process.pid for process in ring.processes]
    ring.close()
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


def test_batches_that_are_kept_are_not_written_over(folder: Path) -> None:
    fill, batches = filler(folder), batches_of(*[5] * 20)
    ring = Ring(fill, 1, 5, SIZE)
    kept = list(ring.read(JOB, batches, SIZE))
    views = [pixels[1:3].permute(0, 3, 1, 2) for pixels in ring.read(JOB, batches, SIZE)]  # the tensor itself goes
    ring.close()
    gc.collect()
    for pixels, view, want in zip(kept, views, expected(fill, JOB, batches), strict=True):
        assert torch.equal(pixels, want) and torch.equal(view, want[1:3].permute(0, 3, 1, 2))


def test_a_read_that_is_left_early_does_not_reach_into_the_next(folder: Path) -> None:
    source = open_data(DataConfig(name=str(folder), image_size=SIZE, loader=LoaderConfig(workers=2)))
    whole = list(source.train_batches(1, 3, BatchSplit(1, 1, 6), 0))
    for leave_after in (1, 4):
        read: Any = source.train_steps(1, 2 + leave_after, BatchSplit(1, 1, 6), 0)
        for _ in range(leave_after):
            list(next(read))
        read.close()
        assert all(same(a, b) for a, b in zip(whole, source.train_batches(1, 3, BatchSplit(1, 1, 6), 0), strict=True))
    source.close()


def test_reads_of_one_source_may_overlap(folder: Path) -> None:
    source = open_data(DataConfig(name=str(folder), image_size=SIZE, loader=LoaderConfig(workers=1)))
    alone = [list(source.train_batches(1, 2, BatchSplit(2, 1, 4), rank)) for rank in (0, 1)]
    both = zip(*(source.train_batches(1, 2, BatchSplit(2, 1, 4), rank) for rank in (0, 1)), strict=True)
    assert same(list(both), list(zip(*alone, strict=True)))
    source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumes_in_mid_epoch_on_other_workers_and_processes(folder: Path, workers: int) -> None:
    """The rest of the epoch on two ranks and any number of processes is what one rank without any would have seen."""
    one = open_data(DataConfig(name=str(folder), image_size=SIZE))
    two = open_data(DataConfig(name=str(folder), image_size=SIZE, loader=LoaderConfig(workers=workers)))
    whole = list(one.train_batches(1, 2, BatchSplit(1, 2, 4), 0))
    rest = [list(two.train_batches(1, 2, BatchSplit(2, 1, 4), rank, start_step=2)) for rank in (0, 1)]
    assert len(whole) == 5 and len(rest[0]) == 3
    assert same([[*a, *b] for a, b in zip(*rest, strict=True)], whole[2:])
    two.close()


def test_a_killed_process_is_named(folder: Path) -> None:
    ring = Ring(filler(folder), 2, 6, SIZE)
    read = ring.read(JOB, batches_of(*[6] * 200), SIZE)
    next(read)
    victim = ring.processes[1].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(LoaderError, match=f"loader 1 .process {victim}. was killed by SIGKILL"):
        for _ in read:
            pass
    assert not ring.open and not any(process.is_alive() for process in ring.processes)


def test_signals_that_stop_a_run_are_left_to_the_trainer(folder: Path) -> None:
    """Slurm sends them to every process of a step; the trainer needs batches until its checkpoint is written."""
    ring = Ring(filler(folder), 2, 6, SIZE)
    read = ring.read(JOB, batches_of(*[6] * 40), SIZE)
    next(read)
    for process in ring.processes:
        pid = process.pid or 0  # it has only just begun
        wait_until(functools.partial(ignores, pid, signal.SIGUSR1), "the loader does not ignore SIGUSR1")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(process.pid or 0, number)
    assert len(list(read)) == 39
    ring.close()


def ignores(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def failing(job: Any, indices: Any, pixels: torch.Tensor, places: range, ahead: Any) -> None:
    raise ZeroDivisionError("of a test")


def test_an_error_of_a_process_comes_with_its_traceback() -> None:
    ring = Ring(failing, 1, 4, SIZE)
    with pytest.raises(LoaderError, match="(?s)in failing.*ZeroDivisionError: of a test"):
        next(ring.read(None, batches_of(4), SIZE))
    ring.close()


TRAINER = """
import sys
import numpy as np
from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data

if __name__ == "__main__":
    loader = LoaderConfig(workers=2)
    sources = [open_data(DataConfig(name=sys.argv[1], image_size=16, loader=loader)) for _ in range(2)]
    reads = [source.train_batches(0, 0, BatchSplit(1, 1, 4), 0) for source in sources]
    kept = [next(read) for read in reads]
    print("reading", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["kill", pytest.param("exit", marks=pytest.mark.exhaustive)])
def test_nothing_is_left_of_a_trainer(folder: Path, tmp_path: Path, end: str) -> None:
    """Two rings, in the midst of their epochs: after kill -9, and after an exit that closes nothing."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, script, folder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout and trainer.stdin and trainer.stdout.readline() == "reading\n"
        children = psutil.Process(trainer.pid).children(recursive=True)
        maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in children]
        assert sum("memfd:bigbatch-loader" in text for text in maps) == 4  # no name that could stay behind
        assert not any("/dev/shm/" in text for text in maps)
        if end == "kill":
            trainer.kill()
        else:
            trainer.stdin.close()
        assert trainer.wait(120) == (-signal.SIGKILL if end == "kill" else 0)
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive


def test_a_process_that_hangs_at_its_fork_is_an_error_that_says_what_to_do(folder: Path, monkeypatch) -> None:
    """As with a lock that another thread held at the fork: nothing else would ever tell."""
    monkeypatch.setattr(ring_module, "BEGIN_S", 0.5)
    monkeypatch.setattr(ring_module, "_work", lambda *_: signal.pause())
    ring = Ring(filler(folder), 2, 7, SIZE)
    with pytest.raises(LoaderError, match=r"did not begin\. Repeat the command, write data\.loader\.workers=0"):
        next(ring.read(JOB, batches_of(7), SIZE))
    assert not ring.open and not any(process.is_alive() for process in ring.processes)
