"""``srun python train_loop/run.py``: training over three real nodes without Ray, ranks from Slurm's variables."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.config import AugmentConfig, BatchConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import ListReporter
from helpers.paths import TRAIN
from helpers.waiting import wait_until
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


class FirstThree(ListReporter):
    """Enough to compare with."""

    def stop_requested(self) -> bool:
        return len(self.records) == 3


def submit(cluster: VirtualCluster, folder: Path, config: TrainConfig) -> str:
    (folder / "best.json").write_text(config.to_json())
    (folder / "best.json").chmod(0o644)
    script = f"#!/bin/bash\nsrun --export=ALL {sys.executable} {TRAIN} --config best.json --output out"
    sbatch = ("-N3", "--ntasks-per-node=2", "-c1", "--time=10", "--output=log.txt", "--open-mode=append")
    return cluster.sbatch("alice", *sbatch, script=script, cwd=folder, env={"OMP_NUM_THREADS": "1"})


def log_of(folder: Path) -> str:
    path = folder / "log.txt"
    return path.read_text() if path.exists() else ""


def test_three_nodes_with_two_tasks_each_train_as_one_process_would_and_stop_on_usr1(
    cluster: VirtualCluster, tiny_images: Path
) -> None:
    folder = cluster.folder("alice", "ddp")
    shutil.copytree(tiny_images, folder / "images")
    for path in (folder / "images", *(folder / "images").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    config = TrainConfig(
        epochs=12,
        precise_bn="off",
        model=ModelConfig(name="squeezenet1_1"),  # without BatchNorm, which amplifies rounding at 4 images
        data=DataConfig(name=str(folder / "images"), image_size=32, augment=AugmentConfig(enabled=False)),
        batch=BatchConfig(global_size=24, micro_size=4),
        optimizer=OptimizerConfig(peak_lr=0.005),
    )
    first = submit(cluster, folder, config)
    wait_until(lambda: "epoch  3/12" in log_of(folder), lambda: log_of(folder), 300, 0.1)
    cluster.run("ctl", "scancel", "-s", "USR1", first, user="alice")  # as --signal=USR1@… does to the steps
    cluster.wait_state(first, ("FAILED", "COMPLETED"), 240)
    log = log_of(folder)
    assert "To resume: repeat the command" in log and log.count("To resume") == 1, "one rank speaks"
    assert "epoch 12/12" not in log

    second = submit(cluster, folder, config)
    assert cluster.wait_state(second, ("FAILED", "COMPLETED"), 500) == "COMPLETED", log_of(folder)
    result = json.loads((folder / "out" / "result.json").read_text())
    assert result["record"]["workers"] == 6 and [r["epoch"] for r in result["history"]] == list(range(1, 13))
    assert (result["history"][-1]["resumed_from_epoch"] or 0) >= 2

    alone = FirstThree()
    with pytest.raises(TrainingStopped):
        train(config, reporter=alone, device=torch.device("cpu"))
    for here, there in zip(alone.records, result["history"][:3], strict=True):
        assert there["train_loss"] == pytest.approx(here.train_loss, rel=2e-3)
