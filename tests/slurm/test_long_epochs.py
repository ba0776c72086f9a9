"""A search whose epochs are longer than an allocation, trained by checkpoints from one start of its job to the next."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.waiting import wait_until
from ray_job import RayJob, trials_of
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.exhaustive]

TRIALS, TRAIN_IMAGES, BATCH = 2, 40_000, 4
SPACE = f'''
"""One learning rate, and so many steps that an epoch takes more than a minute of a core."""

def space(trial, workload):
    """Learning rate of SGD at batch {BATCH}."""
    lr = trial.suggest_float("peak_lr", 1e-3, 0.01, log=True)
    return workload.config({{"batch.global_size": {BATCH}, "optimizer": "sgd", "peak_lr": lr, "precise_bn": "off"}})
'''


def write_images(root: Path) -> None:
    """Two classes of coloured noise, 16 px."""
    noise = np.random.default_rng(0)
    for split, count in (("train", TRAIN_IMAGES), ("val", 16)):
        for label in (0, 1):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(count // 2):
                pixels = noise.integers(0, 128, (16, 16, 3)) + 120 * label
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{i:05d}.png")


def checkpoints(job: RayJob) -> dict[str, tuple[float, int]]:
    """By trial: when its checkpoint was written, seconds since the epoch, and after which step."""
    found = {}
    for path in Path(job.record["study_folder"]).glob("checkpoints/*/latest.pt"):
        try:
            written, content = path.stat().st_mtime, torch.load(path, weights_only=False)
        except FileNotFoundError:  # a trial that ends removes it at this moment
            continue
        found[path.parent.name] = written, content["progress"]["step"]
    return found


def all_trials_saved_since(job: RayJob, began: float) -> bool:
    return sum(at > began for at, _ in checkpoints(job).values()) == TRIALS


def has_requeued(job: RayJob, times: int) -> bool:
    return job.log.count("→ requeueing (143)") == times


def test_an_epoch_that_is_longer_than_an_allocation_is_trained_in_the_next_ones(cluster: VirtualCluster):
    """USR1 comes twice before any trial has ended its only epoch."""
    data = cluster.folder("alice", "long")
    write_images(data / "images")
    (data / "space.py").write_text(SPACE)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    own = ("--space", f"{data}/space.py", "--data", f"{data}/images", "--model", "shufflenet_v2_x0_5")
    few = ("--set", "image_size=16", "--trials", str(TRIALS), "--max-epochs", "1", "--stopping", "none")
    job = RayJob(cluster, "alice", ("--time=30",), (*own, *few, "--confirm", "none"))
    saved: dict[str, tuple[float, int]] = {}
    for start in (1, 2):
        job.wait_log(f"start {start};")
        began, before = time.time(), saved
        # Its twenty-second checkpoints show that each trial trains again.
        wait_until(partial(all_trials_saved_since, job, began), job.everything, 600)
        signalled = time.time()
        cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
        wait_until(partial(has_requeued, job, start), job.everything, 120)
        saved = checkpoints(job)
        assert len(saved) == TRIALS and all(at > signalled for at, _ in saved.values()), "written when told to end"
        steps = {name: step for name, (_, step) in saved.items()}
        assert all(before.get(name, (0, 0))[1] < step < TRAIN_IMAGES // BATCH for name, step in steps.items()), steps
    job.wait_log("start 3;")
    job.wait_end("COMPLETED", 600)
    trials = trials_of(job)
    assert [t.state.name for t in trials] == ["COMPLETE"] * TRIALS, job.everything()
    for trial in trials:
        record = trial.user_attrs["epoch/00001"]
        assert trial.user_attrs["attempts"] == 3 and len(trial.intermediate_values) == 1
        assert record["optimizer_steps"] == TRAIN_IMAGES // BATCH, "each step once"
        assert record["resumed_from_epoch"] == 0, "from within the epoch"
    assert (job.record["restarts"], job.record["fruitless_restarts"]) == (2, 0)
    assert job.leftovers() == []
