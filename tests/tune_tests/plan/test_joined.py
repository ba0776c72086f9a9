"""A cluster that was joined: the plan is checked again with what its nodes have, before the first trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan import fitting
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.fitting import plan_for_cluster
from bigbatch.tune.plan.machine import Machine, Node
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan

GIB = 2**30
CORES = Machine((Node(8, 0, 64 * GIB), Node(8, 0, 16 * GIB)))
GPUS = Machine((Node(64, 0, 256 * GIB), Node(8, 2, 64 * GIB, 40 * GIB), Node(8, 2, 64 * GIB, 80 * GIB)))

NEEDY = '''
def space(trial, workload):
    """Wants {wants} of device memory where it is known."""
    if 0 < workload.memory_bytes < {wants}:
        raise ValueError(f"a device of {{workload.memory_bytes}} bytes")
    size = 512 if workload.accelerator == "cuda" else 128
    rate = trial.suggest_float("peak_lr", 1e-3 * size, 1e-2 * size, log=True)
    return workload.config({{"batch.global_size": size, "optimizer": "sgd", "peak_lr": rate}})
'''


@pytest.fixture
def plan(tmp_path: Path):
    """The plan of a search that will join a cluster, as the login node makes it."""

    def make(wants: int = 1, **options) -> SearchPlan:
        path = tmp_path / "needy.py"
        path.write_text(NEEDY.format(wants=wants))
        return make_plan(SearchOptions(**{"space": str(path), "output": str(tmp_path), "address": "auto", **options}))

    return make


def test_a_plan_takes_the_clusters_devices_memory_model_and_ranges(plan, monkeypatch):
    monkeypatch.setattr(fitting, "MANY_IMAGES", 1000)
    before = plan(set=("image_size=96",))
    assert before.workload.memory_bytes == 0 and before.workload.accelerator == "cpu"
    after = plan_for_cluster(before, GPUS)
    assert (after.workload.memory_bytes, after.workload.accelerator, after.model) == (40 * GIB, "cuda", "resnet50")
    assert after.ranges["peak_lr"].low == pytest.approx(0.512), "the ranges are those of the cluster's devices"
    assert after.share.concurrency == 4 and after.share.worker_resources == {"CPU": 4.0, "GPU": 1.0}
    cores = plan_for_cluster(before, CORES)
    assert (cores.workload.memory_bytes, cores.model) == (16 * GIB, "resnet18"), "the smallest node's, not all nodes'"
    assert cores.ranges["peak_lr"].low == pytest.approx(0.128)


def test_a_space_that_does_not_fit_the_clusters_memory_is_refused_with_its_numbers(plan):
    needy = plan(wants=48 * GIB)
    with pytest.raises(ConfigError) as refused:
        plan_for_cluster(needy, GPUS)
    text = str(refused.value)
    assert "2 GPUs of 42.9 GB and 8 CPU cores" in text and f"a device of {40 * GIB} bytes" in text and "\n" not in text
    larger = Machine((Node(64, 0, GIB), Node(8, 2, 64 * GIB, 80 * GIB)))
    assert plan_for_cluster(needy, larger).workload.memory_bytes == 80 * GIB, "not the head's, which has no GPU"


@pytest.mark.parametrize(
    ("options", "machine", "words"),
    [
        ({"set": ("sync_bn=true",)}, CORES, "sync_bn needs GPUs"),
        ({"workers": 8}, GPUS, "at most 4, the number of GPUs; got 8"),
        ({"workers": 32}, CORES, "at most 16, the number of CPU cores; got 32"),
        ({}, Machine((Node(0, 0, GIB),)), "at most 0, the number of CPU cores; got 1"),
        ({}, Machine(), "has no living node"),
    ],
)
def test_what_the_cluster_cannot_do_is_refused_in_one_line(plan, options, machine, words):
    with pytest.raises(ConfigError) as refused:
        plan_for_cluster(plan(**options), machine)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert str(refused.value).startswith("on the cluster, ")


def test_a_space_for_gpus_alone_can_be_planned_before_the_cluster_is_joined(plan, tmp_path):
    path = tmp_path / "gpu_only.py"
    only = "    if workload.accelerator == 'cpu':\n        raise ValueError('this space needs GPUs')\n    size ="
    path.write_text(NEEDY.format(wants=1).replace("    size =", only))
    before = plan(space=str(path))
    assert plan_for_cluster(before, GPUS).workload.accelerator == "cuda"
    with pytest.raises(ConfigError, match="2 nodes|a node with 8 CPU cores.*needs GPUs"):
        plan_for_cluster(before, CORES)
    with pytest.raises(ConfigError, match="this space needs GPUs"):
        plan(space=str(path), address="local")
