"""What the report concludes from rates, and how many loader processes there are."""

from __future__ import annotations

import pytest

from cluster.allocation import usable_cpus
from train_loop.config import DataConfig
from train_loop.data.cores import cores_a_rank, loader_workers
from train_loop.loader_report import Rates, advice


@pytest.mark.parametrize(
    ("numbers", "device", "words"),
    [
        ((800, 7000, 2500, 9, 10), "cuda", ["by the model", "2.8 times", "4 would do"]),
        ((800, 1500, 2500, 2, 10), "cuda", ["0.60 of", "data.loader_workers=4"]),
        ((300, 2400, 8000, 9, 10), "cuda", ["0.30 of", "32 cores", "--profile fast"]),
        ((800, 800, 2500, 0, 10), "cuda", ["606 images/s", "data.loader_workers=4"]),
        ((800, 800, 10, 0, 2), "cpu", ["Decoding costs little"]),
    ],
)
def test_what_bounds_a_run(numbers: tuple[int, ...], device: str, words: list[str]) -> None:
    text = "\n".join(advice(Rates(*numbers), device))
    assert all(word in text for word in words), text


def test_loader_processes_by_the_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader_workers(DataConfig(loader_workers=3)) == 3
    here = usable_cpus({})
    assert cores_a_rank({}) == here and loader_workers(DataConfig(loader_workers=-1), {}) == here - 1
    assert cores_a_rank({"LOCAL_WORLD_SIZE": "1000"}) == 1
    assert cores_a_rank({"RAY_JOB_ID": "01", "OMP_NUM_THREADS": "5"}) == 5
    slurm = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "32"}
    assert cores_a_rank(slurm) == 1
