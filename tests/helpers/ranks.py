"""A run that takes seconds, and its ranks, started as srun starts the tasks of a step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bigbatch.train_loop.config import TrainConfig
from helpers.paths import TRAIN
from helpers.processes import clean_environment

SMALL = TrainConfig(epochs=2, precise_bn="off").replace_keys(
    {"model.name": "shufflenet_v2_x0_5", "data.image_size": 16, "batch.global_size": 16, "optimizer.peak_lr": 0.01}
)


def write_config(folder: Path, images: Path, **keys: object) -> Path:
    """``best.json`` of ``SMALL`` on a folder of images; ``batch__global_size`` is the key ``batch.global_size``."""
    changes = {key.replace("__", "."): value for key, value in keys.items()}
    (folder / "best.json").write_text(SMALL.replace_keys({"data.name": str(images), **changes}).to_json())
    return folder / "best.json"


STEP = {  # of rank 4 of: srun -N 3 --ntasks-per-node=2
    "SLURM_JOB_ID": "1234567", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2",
}  # fmt: skip


def start_ranks(best: Path, *arguments: str, **env: str) -> list[subprocess.Popen]:
    """Two tasks of a step on this machine, as srun starts them."""
    # A job's number says the port where ranks meet: tests that run side by side need their own.
    step = {**STEP, "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0"}
    # By lo: gloo warns on stderr where the machine's own name has no address.
    step |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
    command = [sys.executable, str(TRAIN), "--config", str(best), "--output", "out", *arguments]
    return [
        subprocess.Popen(
            command, cwd=best.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**clean_environment(), **step, **env, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip


def without_gloo(printed: str) -> str:
    """What a rank printed, without a line with which gloo greets in some releases of torch."""
    return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("[Gloo]"))
