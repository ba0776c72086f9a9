"""How many batch slots a loader has, and that none is copied out of where there are enough."""

import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, DataConfig, LoaderConfig, TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.counts import memory_per_rank_bytes, slot_count
from bigbatch.train_loop.data.loading.upload import COPIES_AHEAD
from bigbatch.train_loop.loop.checkpoint import FORMAT, check_same_run, describe_data
from helpers.noise_images import write_noise_images

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
    ],
)
def test_slots_are_enough_and_within_a_part_of_the_memory(asked, needed, slot, memory, expected):
    assert slot_count(asked, needed, slot, memory) == expected


def test_any_number_fits_or_is_the_fewest(caplog: pytest.LogCaptureFixture) -> None:
    draws = random.Random(0)
    for _ in range(500):
        asked = draws.choice([0, draws.randrange(1, 1025)])
        slot, memory = int(10 ** draws.uniform(4, 10)), int(10 ** draws.uniform(8, 12))
        caplog.clear()
        count = slot_count(asked, draws.randrange(3, 60), slot, memory)
        assert count >= 4
        assert count == 4 or count * slot <= memory / (2 if asked else 8)
        assert count >= min(asked, 4) and (not asked or count <= max(asked, 4))
        assert bool(caplog.records) is (count < asked)
        if caplog.records:
            assert f"data.loader.slots={asked} would take" in caplog.text and f"it gets {count} slots" in caplog.text


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
def test_training_with_copies_under_way_leaves_batches_in_their_slots(tmp_path, depth, expected, accumulation, made):
    """The consumer holds what it computes with and, as ``Uploader`` does, what is still being copied from."""
    write_noise_images(tmp_path)
    config = DataConfig(name=str(tmp_path), image_size=16, loader=LoaderConfig(workers=1, slots=depth))
    source, split = open_data(config), BatchSplit(1, accumulation, 2)
    under_way: deque[Any] = deque(maxlen=COPIES_AHEAD)
    for epoch in range(3):
        for step in source.train_steps(1, epoch, split, 0):
            for batch in step:
                under_way.append(batch)
    (one,) = made
    assert one.given == 3 * 20 // split.global_size * accumulation
    assert {one.copied > 0} == expected
    assert one.slots.count == (depth or 8)
    assert one.slots.bytes >= one.slots.count * one.slots.slot_bytes
    source.close()


def test_a_run_goes_on_with_another_depth_and_from_before_there_was_a_key(tmp_path: Path) -> None:
    old = TrainConfig().to_dict()
    del old["data"]["loader"]["slots"]
    assert TrainConfig.from_dict(old) == TrainConfig()
    other = TrainConfig().replace_keys({"loader_slots": 16})
    assert other.outcome_json() == TrainConfig().outcome_json()
    info = describe_data_set(other.data)
    check_same_run({"format": FORMAT, "config": old, "data": describe_data(info)}, other, info, tmp_path)


def test_slots_are_no_file_in_dev_shm() -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    one = ring.Ring(_nothing, 1, 4, 64)
    one.slots.pixels(0, 4, 64)[:] = np.uint8(1)
    names = {path.name for path in Path("/dev/shm").iterdir()} - before
    one.close()
    assert not any("bigbatch" in name for name in names)


def _nothing(job: Any, indices: Any, pixels: torch.Tensor, places: range, ahead: Any) -> list[ring.BadImage]:
    return []
