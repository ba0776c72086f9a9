"""How many processes and how many batch slots a loader has; none is copied out of."""

from collections import deque
from typing import Any

import pytest

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.counts import cores_per_rank, loader_workers, memory_per_rank_bytes, slot_count
from bigbatch.train_loop.data.loading.upload import COPIES_AHEAD

MB, GB = 10**6, 10**9
PER_CPU = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "512", "SLURM_STEP_TASKS_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("needed", "slot", "memory", "expected"),
    [
        (3, 77 * MB, 128 * GB, 8),  # 2 × 256 images of 224 pixels
        (18, 5 * MB, 128 * GB, 18),  # small batches, many processes
        (100, 5 * MB, 128 * GB, 32),
        (3, 1233 * MB, 64 * GB, 6),  # 2 × 4096: an eighth of the memory is 8 GB
        (3, 1233 * MB, 8 * GB, 4),  # less does not work well
    ],
)
def test_slots_are_enough_and_within_a_part_of_the_memory(needed, slot, memory, expected):
    assert slot_count(needed, slot, memory) == expected


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


@pytest.mark.parametrize(("slots", "copies"), [(8, False), (4, True)])
@pytest.mark.parametrize("accumulation", [1, 5])
def test_training_with_copies_under_way_leaves_batches_in_their_slots(
    folder, slots, copies, accumulation, made, monkeypatch
):
    """The consumer holds what it computes with and, as ``Uploader`` does, what is still being copied from."""
    monkeypatch.setattr(ring, "slot_count", lambda *_: slots)
    config = DataConfig(name=str(folder), image_size=16, loader=LoaderConfig(workers=1))
    source, split = open_data(config), BatchSplit(1, accumulation, 2)
    under_way: deque[Any] = deque(maxlen=COPIES_AHEAD)
    for epoch in range(3):
        for step in source.train_steps(1, epoch, split, 0):
            for batch in step:
                under_way.append(batch)
    (one,) = made
    assert one.given == 3 * 40 // split.global_size * accumulation
    assert (one.copied > 0) == copies
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
