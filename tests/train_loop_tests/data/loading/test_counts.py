"""How many processes a loader has, by what an epoch has shown, and how many batch slots; none is copied out of."""

import functools
import multiprocessing
import random
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading import counts, ring
from bigbatch.train_loop.data.loading.counts import (
    ReadCost,
    cores_per_rank,
    enough_processes,
    loader_workers,
    memory_per_rank_bytes,
    slot_count,
)
from bigbatch.train_loop.data.loading.loader import IndexedImages, LoadedSource, WriteImage
from bigbatch.train_loop.data.loading.upload import COPIES_AHEAD
from bigbatch.train_loop.data.source import Batch
from helpers.packed_sets import same

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


@pytest.mark.parametrize(
    ("workers", "step_s", "wanted"), [(-1, 0.070, [6, 2, 2]), (-1, 0.0, [6, 6, 6]), (3, 0.070, [3, 3, 3])]
)
def test_a_source_keeps_what_its_consumer_needs(workers, step_s, wanted, monkeypatch):
    """Batches of 24 take 0.096 s of work; against a step of 70 ms that is 1.4 processes, with room 1.65."""
    monkeypatch.setattr(counts, "MIN_MEASURED_S", 0.1)
    source, split = source_of(workers, monkeypatch), BatchSplit(1, 1, 24)
    assert source.processes == wanted[0]  # the cores but one, if it may choose
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
    # Another number each epoch.
    monkeypatch.setattr(counts, "enough_processes", lambda reads, now, most: 1 + now % most)
    tuned, fixed = source_of(-1, monkeypatch, cores=4), source_of(0, monkeypatch)
    numbers = []
    for epoch in range(4):
        assert same(*(list(source.train_batches(3, epoch, BatchSplit(1, 2, 20), 0)) for source in (tuned, fixed)))
        numbers.append(tuned.processes)
    tuned.close()
    assert numbers == [3, 1, 2, 3]


def test_a_read_that_is_left_early_says_nothing_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(-1, monkeypatch, cores=3)
    read = source.train_batches(0, 0, BatchSplit(1, 1, 24), 0)
    next(read)
    read.close()  # type: ignore[attr-defined]
    assert source._reads == [] and len(source._rings) == 1
    batches: list[Batch] = list(source.val_batches(24, 0, 1))
    assert len(batches) == 1 and len(source._reads) == 1
    source.close()


MB, GB = 10**6, 10**9
PER_CPU = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "512", "SLURM_STEP_TASKS_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("asked", "needed", "slot", "memory", "expected"),
    [
        (0, 3, 77 * MB, 128 * GB, 8),  # 2 × 256 images of 224 pixels
        (0, 18, 5 * MB, 128 * GB, 18),  # small batches, many processes
        (0, 100, 5 * MB, 128 * GB, 32),
        (0, 3, 1233 * MB, 64 * GB, 6),  # 2 × 4096: an eighth of the memory is 8 GB
        (0, 3, 1233 * MB, 8 * GB, 4),  # less does not work well
        (16, 3, 77 * MB, 128 * GB, 16),
        (1, 3, 77 * MB, 128 * GB, 4),
        (1024, 3, 10 * MB, 4 * GB, 200),
        (16, 3, 10 * GB, 1 * GB, 4),
    ],
)
def test_slots_are_enough_and_within_a_part_of_the_memory(asked, needed, slot, memory, expected, caplog):
    assert slot_count(asked, needed, slot, memory) == expected
    assert bool(caplog.records) is (expected < asked)
    if caplog.records:
        assert f"data.loader.slots={asked} would take" in caplog.text and f"it gets {expected} slots" in caplog.text


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({}, 1.0),
        ({"LOCAL_WORLD_SIZE": "4"}, 0.25),
        ({"RAY_JOB_ID": "1", "BIGBATCH_WORKER_CORES": "2"}, 0.25),
        ({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "4096", "SLURM_STEP_TASKS_PER_NODE": "8"}, 0.125),
        (PER_CPU, 0.125),
        ({**PER_CPU, "SLURM_CPUS_PER_TASK": "4"}, 1.0),  # a task's cores have their own
    ],
)
def test_a_rank_has_its_share_of_the_nodes_memory(env, part, monkeypatch):
    monkeypatch.setattr("bigbatch.train_loop.data.loading.counts.usable_memory_bytes", lambda env: 64 * GB)
    monkeypatch.setattr("bigbatch.train_loop.data.loading.counts.usable_cpus", lambda env: 8)
    assert memory_per_rank_bytes(env) == part * 64 * GB


@pytest.mark.parametrize(("depth", "expected"), [(0, {False}), (4, {True})])
@pytest.mark.parametrize("accumulation", [1, 5])
def test_training_with_copies_under_way_leaves_batches_in_their_slots(folder, depth, expected, accumulation, made):
    """The consumer holds what it computes with and, as ``Uploader`` does, what is still being copied from."""
    config = DataConfig(name=str(folder), image_size=16, loader=LoaderConfig(workers=1, slots=depth))
    source, split = open_data(config), BatchSplit(1, accumulation, 2)
    under_way: deque[Any] = deque(maxlen=COPIES_AHEAD)
    for epoch in range(3):
        for step in source.train_steps(1, epoch, split, 0):
            for batch in step:
                under_way.append(batch)
    (one,) = made
    assert one.given == 3 * 40 // split.global_size * accumulation
    assert {one.copied > 0} == expected
    assert one.slots.count == (depth or 8)
    assert one.slots.bytes >= one.slots.count * one.slots.slot_bytes
    source.close()


def test_loader_processes_by_the_cores_of_a_rank() -> None:
    assert loader_workers(DataConfig(loader=LoaderConfig(workers=3))) == 3
    here = usable_cpus({})
    assert cores_per_rank({}) == here and loader_workers(DataConfig(loader=LoaderConfig(workers=-1)), {}) == here - 1
    assert loader_workers(DataConfig(), {"LOCAL_WORLD_SIZE": "1000"}) == 0, "one core decodes and trains"
    assert loader_workers(DataConfig(), {"BIGBATCH_WORKER_CORES": "128"}) == 32
    assert cores_per_rank({"LOCAL_WORLD_SIZE": "1000"}) == 1
    assert cores_per_rank({"RAY_JOB_ID": "01", "OMP_NUM_THREADS": "5"}) == 5
    # The user's own OMP_NUM_THREADS says nothing of the cores that Ray has given.
    assert cores_per_rank({"RAY_JOB_ID": "01", "OMP_NUM_THREADS": "1", "BIGBATCH_WORKER_CORES": "8"}) == 8
    slurm = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "32"}
    assert cores_per_rank(slurm) == 1


def test_tasks_of_srun_without_binding_share_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("bigbatch.cluster.host.allocation._cgroup_cpu_quota", lambda _: None)
    step = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "32", "SLURM_STEP_NUM_TASKS": "6"}
    assert cores_per_rank({**step, "SLURM_STEP_TASKS_PER_NODE": "4,2", "SLURM_NODEID": "0"}) == 8
    assert cores_per_rank({**step, "SLURM_STEP_TASKS_PER_NODE": "4,2", "SLURM_NODEID": "1"}) == 16
    assert cores_per_rank({**step, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}) == 32
    assert cores_per_rank({**step, "SLURM_STEP_TASKS_PER_NODE": "40,2", "SLURM_NODEID": "0"}) == 1
    assert cores_per_rank({**step, "SLURM_STEP_TASKS_PER_NODE": "4,2", "SLURM_CPUS_PER_TASK": "3"}) == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})  # bound
    assert cores_per_rank({**step, "SLURM_STEP_TASKS_PER_NODE": "4,2"}) == 2
