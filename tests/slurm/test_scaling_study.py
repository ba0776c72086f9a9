"""``bigbatch scale`` in a job of three nodes: a serial run, then steps of the job on parts of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from bigbatch.train_loop.config import BatchConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_one_allocation_measures_one_node_after_the_other(cluster: VirtualCluster, tiny_images: Path) -> None:
    folder = cluster.folder("alice", "scale")
    shutil.copytree(tiny_images, folder / "images")
    config = TrainConfig(
        epochs=2, model=ModelConfig(name="squeezenet1_1"), batch=BatchConfig(global_size=8),
        data=DataConfig(name=str(folder / "images"), image_size=32),
        optimizer=OptimizerConfig(name="lars", peak_lr=0.5),
    )  # fmt: skip
    (folder / "best.json").write_text(config.to_json())
    for path in (folder / "best.json", folder / "images", *(folder / "images").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = f"{sys.executable} -m bigbatch scale --config best.json --workers 1,3 --output out"
    sbatch = ("-N3", "--ntasks-per-node=1", "-c1", "--time=15", "--output=log.txt")
    script = f"#!/bin/bash\n{command}\n"
    job = cluster.sbatch("alice", *sbatch, script=script, cwd=folder, env={"OMP_NUM_THREADS": "1"})
    state = cluster.wait_state(job, ("FAILED", "COMPLETED"), 800)
    log = (folder / "log.txt").read_text()
    assert state == "COMPLETED", log
    one, three = (json.loads((folder / "out" / name / "result.json").read_text()) for name in "13")
    assert (one["record"]["workers"], three["record"]["workers"]) == (1, 3)
    assert [found["config"]["batch"]["global_size"] for found in (one, three)] == [8, 24]
    # You et al. 2020: LARS and LAMB follow the square root of the batch.
    rates = [found["config"]["optimizer"]["peak_lr"] for found in (one, three)]
    assert rates == pytest.approx([0.5, 0.5 * 3**0.5])
    assert re.search(r"^ +3 +3 +24 ", log, re.MULTILINE), log
    assert re.search(r"srun .*--nodes=3 --ntasks=3", log)
