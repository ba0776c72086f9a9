"""What the report concludes from rates, and how many loader processes there are."""

from pathlib import Path

import pytest
import torch

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import DataConfig, LoaderConfig, ModelConfig, TrainConfig
from bigbatch.train_loop.data.loading.counts import cores_per_rank, loader_workers
from bigbatch.train_loop.launch import loader_report
from bigbatch.train_loop.launch.loader_report import ImageRates, cores_of_a_run, loader_advice
from bigbatch.train_loop.launch.local_workers import worker_resources


@pytest.mark.parametrize(
    ("numbers", "device", "words"),
    [
        ((800, 7000, 2500, 9, 10), "cuda", ["by the model", "2.8 times", "4 would do"]),
        ((800, 1500, 2500, 2, 10), "cuda", ["0.60 of", "data.loader.workers=4"]),
        ((300, 2400, 8000, 9, 10), "cuda", ["0.30 of", "32 cores", "--profile fast"]),
        ((800, 800, 2500, 0, 10), "cuda", ["606 images/s", "data.loader.workers=4"]),
        ((800, 800, 10, 0, 2), "cpu", ["Decoding costs little"]),
        ((200, 200, 3000, 0, 8), "cuda", ["data.loader.workers=-1", "18 cores", "here 8"]),
        ((500, 700, 1000, 4, 8), "cuda", ["0.70 of", "175 images/s, a core alone 500", "shared"]),
    ],
)
def test_what_bounds_a_run(numbers: tuple[int, ...], device: str, words: list[str]) -> None:
    text = "\n".join(loader_advice(ImageRates(*numbers), device))
    assert all(word in text for word in words), text


def test_loader_processes_by_the_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_cores_of_a_run_are_its_gpus_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("bigbatch.cluster.host.allocation._cgroup_cpu_quota", lambda _: None)
    for cpus, gpus in ((64, 4), (64, 0), (64, 100)):
        assert cores_of_a_run(gpus, {}) == max(int(worker_resources(1, cpus, gpus)["CPU"]), 1)
    assert cores_of_a_run(4, {"LOCAL_WORLD_SIZE": "2"}) == 32


def test_one_micro_batch_of_the_last_epoch_is_timed(monkeypatch: pytest.MonkeyPatch, tiny_images: Path) -> None:
    """A global batch of many micro-batches would take minutes; images that grow are judged at their last size."""
    timed: list[torch.Size] = []
    monkeypatch.setattr(loader_report, "_model_rate", lambda run, step, seconds: timed.extend(b[0].shape for b in step))
    keys: dict[str, object] = {"data.name": str(tiny_images), "batch.global_size": 8, "batch.micro_size": 2}
    keys |= {"image_size": 64, "progressive_from": 32, "progressive_start": 1, "progressive_end": 2}
    config = TrainConfig(epochs=3, model=ModelConfig(name="resnet18")).replace_keys(keys)
    loader_report.measure_rates(config, None, 0.01)
    assert timed == [torch.Size([2, 64, 64, 3])]
