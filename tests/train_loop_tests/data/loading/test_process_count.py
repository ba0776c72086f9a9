"""Loader processes that follow what an epoch has shown: the rule by arithmetic, the measurement by known costs."""

import functools
import multiprocessing
import random

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading import counts, ring
from bigbatch.train_loop.data.loading.counts import ReadCost, enough_processes
from bigbatch.train_loop.data.loading.loader import IndexedImages, LoadedSource, WriteImage
from bigbatch.train_loop.data.source import Batch

IMAGE_S = 0.004
INFO = DataInfo("slow", None, 240, 3, 2, 8, 3, ("a", "b"), "small")


class Clock:
    """Seconds that work would take; a process that is forked has its own."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "time", CLOCK)
    monkeypatch.setattr(ring, "time", CLOCK)
    monkeypatch.setattr(multiprocessing, "get_context", functools.partial(multiprocessing.get_context, "fork"))


class SlowImages(IndexedImages):
    """Each takes as long as a large image to decode."""

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return indices % 2

    def open_plain(self, index: int) -> WriteImage:
        def write(out: torch.Tensor) -> None:
            CLOCK.now += IMAGE_S
            out.fill_(index % 256)

        return write

    def open_random(self, index: int, draws: random.Random) -> WriteImage:
        def write(out: torch.Tensor) -> None:
            self.open_plain(index)(out)
            out[0, 0, 0] = draws.randrange(256)

        return write


def source_of(workers: int, monkeypatch: pytest.MonkeyPatch, cores: int = 7) -> LoadedSource:
    monkeypatch.setenv("RAY_JOB_ID", "01")
    monkeypatch.setenv("BIGBATCH_WORKER_CORES", str(cores))
    config = DataConfig(name="slow", loader=LoaderConfig(workers=workers))
    return LoadedSource(config, INFO, SlowImages(), SlowImages(), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("reads", "now", "most", "wanted"),
    [
        # An A100's 2,470 images/s, 800 a process: 1,200 s of work in 389 s of training, so 3.7 processes.
        ([ReadCost(389, 1200)], 7, 7, 4),
        # Validation is three times as fast and would take 7 of them, for a hundredth of the epoch.
        ([ReadCost(389, 1200), ReadCost(6.7, 62)], 7, 7, 4),
        # Half as much validation as training is not left to wait.
        ([ReadCost(389, 1200), ReadCost(65, 600)], 7, 7, 7),
        # Faster images than any number of processes can bring.
        ([ReadCost(100, 1200)], 7, 7, 7),
        # Bigger images in the epochs to come: more again.
        ([ReadCost(389, 1900)], 4, 7, 6),
        # One fewer of many is not worth starting the others anew.
        ([ReadCost(600, 2600)], 7, 7, 7),
        # Training on a CPU.
        ([ReadCost(600, 20)], 15, 15, 1),
        # Too little to judge.
        ([ReadCost(0.1, 0.2)], 7, 7, 7),
        ([], 7, 7, 7),
    ],
)
def test_processes_by_what_an_epoch_cost(reads: list[ReadCost], now: int, most: int, wanted: int) -> None:
    assert enough_processes(reads, now, most) == wanted


@pytest.mark.parametrize(("step_s", "wanted"), [(0.070, [6, 2, 2]), (0.0, [6, 6, 6])])
def test_a_source_keeps_what_its_consumer_needs(step_s, wanted, monkeypatch):
    """Batches of 24 take 0.096 s of work; against a step of 70 ms that is 1.4 processes, with room 1.65."""
    monkeypatch.setattr(counts, "MIN_MEASURED_S", 0.1)
    source, split = source_of(-1, monkeypatch), BatchSplit(1, 1, 24)
    assert source.processes == 6  # the cores but one
    seen = []
    for epoch in range(3):
        for _ in source.train_batches(0, epoch, split, 0):
            CLOCK.now += step_s
        list(source.val_batches(24, 0, 1))
        seen.append(source.processes)
        assert len(source._rings[0].processes) == source.processes
    source.close()
    assert seen == wanted


def test_batches_do_not_depend_on_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MIN_MEASURED_S", 0.0)
    monkeypatch.setattr(
        counts, "enough_processes", lambda reads, now, most: 1 + now % most
    )  # another number each epoch
    tuned, fixed = source_of(-1, monkeypatch, cores=4), source_of(0, monkeypatch)
    numbers = []
    for epoch in range(4):
        both = [source.train_batches(3, epoch, BatchSplit(1, 2, 20), 0) for source in (tuned, fixed)]
        for mine, theirs in zip(*both, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
        numbers.append(tuned.processes)
    tuned.close()
    assert numbers == [3, 1, 2, 3]


def test_a_number_of_the_configuration_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MIN_MEASURED_S", 0.0)
    source = source_of(3, monkeypatch)
    for epoch in range(2):
        for _ in source.train_batches(0, epoch, BatchSplit(1, 1, 24), 0):
            CLOCK.now += 0.05
    assert source.processes == 3
    source.close()


def test_a_read_that_is_left_early_says_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(-1, monkeypatch, cores=3)
    read = source.train_batches(0, 0, BatchSplit(1, 1, 24), 0)
    next(read)
    read.close()  # type: ignore[attr-defined]
    assert source._reads == [] and len(source._rings) == 1
    batches: list[Batch] = list(source.val_batches(24, 0, 1))
    assert len(batches) == 1 and len(source._reads) == 1
    source.close()
