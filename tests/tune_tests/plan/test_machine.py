"""How nodes are cut into workers: against packing worked out anew here, over random clusters."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch import local_workers
from bigbatch.tune.plan import checked_plan, fitting
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.fitting import plan_for_cluster
from bigbatch.tune.plan.machine import AT_MOST, Machine, Node, local_machine, share_out
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from helpers.paths import ROOT
from helpers.processes import clean_environment
from helpers.refusals import refusal

GIB = 2**30


def random_machine(rng: random.Random) -> Machine:
    """A few kinds of nodes: laptops, GPU nodes, heads without GPUs, lopsided ones, some with little memory."""
    kinds = []
    for _ in range(rng.randint(1, 3)):
        gpus = rng.choice((0, 0, 0, 1, 2, 3, 4, 8))
        cpus = rng.choice((0, 1, 1, 2, 3, 4, 7, 8, 16, 48, 128))
        kinds.append(Node(cpus, gpus, int(rng.choice((0.2, 1.4, 1.95, 2, 3, 8, 64, 512)) * GIB), gpus and 40 * 10**9))
    return Machine(tuple(rng.choice(kinds) for _ in range(rng.choice((1, 1, 2, 3, 5, 12)))))


def place(machine: Machine, bundle: dict[str, float], count: int) -> list[list[int]] | None:
    """What is left of each node when ``count`` bundles lie one by one wherever there is room; None if there is none.

    In units of Ray's arithmetic, a ten-thousandth.
    """
    wants = [round(1e4 * bundle.get(kind, 0)) for kind in ("CPU", "GPU", "memory")]
    left = [[10_000 * have for have in (node.cpus, node.gpus, node.memory_bytes)] for node in machine.nodes]
    for _ in range(count):
        node = next((one for one in left if all(h >= w for h, w in zip(one, wants, strict=True))), None)
        if node is None:
            return None
        node[:] = [h - w for h, w in zip(node, wants, strict=True)]
    return left


def clusters():
    for seed in range(1000):
        rng = random.Random(seed)
        yield random_machine(rng), rng.choice((1, 1, 1, 2, 3, 4, 8)), rng.choice((1, 2, 4, 12, 16, 100))


def test_what_runs_at_once_always_fits_and_what_fits_nowhere_is_refused():
    refused = 0
    for machine, workers, trials in clusters():
        have = sum(n.gpus for n in machine.nodes) or sum(n.cpus for n in machine.nodes)
        if workers > have:
            refused += 1
            one_line = rf"\A.*at most {have}, the number of.*got {workers}\..*\Z"  # a dot stands for no line's end
            with pytest.raises(ConfigError, match=one_line):
                share_out(machine, workers, trials)
            continue
        share = share_out(machine, workers, trials)
        assert 1 <= share.concurrency <= trials and share.workers == workers
        assert place(machine, share.worker_resources, share.concurrency * workers) is not None, (machine, share)
    assert 30 < refused < 800, "both happen"


def test_no_gpu_is_left_idle_that_a_trial_could_use():
    met = 0
    for machine, workers, trials in clusters():
        gpus = sum(node.gpus for node in machine.nodes)
        if not workers <= gpus:
            continue
        met += 1
        share = share_out(machine, workers, trials)
        assert share.worker_resources["GPU"] == 1 and share.worker_resources.get("CPU", 1) > 0
        left = place(machine, share.worker_resources, share.concurrency * workers)
        idle = sum(have for _, have, _ in left) // 10_000
        assert idle < workers or share.concurrency == trials, (machine, share)
        # More cores a worker would leave a GPU without: some GPU node has none to spare.
        more = {**share.worker_resources, "CPU": (share.worker_resources.get("CPU", 0) or 0) + 1}
        assert place(machine, more, gpus) is None
    assert met > 150


def brute_force(nodes: list[Node], workers: int, trials: int) -> int:
    """The most cores that any cut into equal workers of whole cores uses, each with memory for ResNet-18."""
    best = 0
    for cores in range(1, max(node.cpus for node in nodes) + 1):
        room = sum(min(node.cpus // cores, node.memory_bytes // (2 * GIB)) for node in nodes)
        best = max(best, min(room // workers, trials) * workers * cores)
    return best


def test_without_gpus_the_cores_are_used_as_far_as_memory_allows():
    met = 0
    for machine, workers, trials in clusters():
        nodes = [node for node in machine.nodes if node.cpus and node.memory_bytes >= 2 * GIB]
        if machine.gpus or not nodes or not (best := brute_force(nodes, workers, trials)):
            continue
        met += 1
        share = share_out(machine, workers, trials)
        assert share.concurrency * workers * share.worker_resources["CPU"] >= 0.9 * best
    assert met > 100


def test_memory_bounds_the_workers_of_each_node_as_ray_counts():
    met = 0
    for machine, workers, trials in clusters():
        with_cores = [node for node in machine.nodes if node.cpus]
        room = sum(min(node.cpus, node.memory_bytes // (2 * GIB)) for node in with_cores)
        if machine.gpus or room < workers or any(node.memory_bytes < 2 * GIB for node in with_cores):
            continue
        met += 1
        share = share_out(machine, workers, trials)
        # Whichever nodes Ray takes: as many as find room there, but no more than run at once in all.
        for node in machine.nodes:
            there = share.concurrency * workers
            while place(Machine((node,)), share.worker_resources, there) is None:
                there -= 1
            assert there * 2 * GIB <= node.memory_bytes, (machine, share)
    assert met > 100


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
    refused = refusal(lambda: plan_for_cluster(plan(**options), machine))
    assert words in refused and refused.startswith("on the cluster, ")


ONE_GPU = Machine((Node(16, 1, 64 * GIB, 80 * GIB),))


@pytest.fixture
def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def plan(machine: Machine = ONE_GPU, **options: object) -> SearchPlan:
        monkeypatch.setattr(checked_plan, "local_machine", lambda: machine)
        given = {"space": "smoke", "output": str(tmp_path), "trials": 16, **options}
        return make_plan(SearchOptions(**given))  # type: ignore[arg-type]

    return plan


def words(plan: SearchPlan) -> str:
    return plan.sharing.words(plan.machine, plan.share)


def test_a_trial_of_several_workers_shares_no_gpu_and_the_reason_is_said(plan_of) -> None:
    two = Machine((Node(16, 2, 64 * GIB, 80 * GIB),))
    with pytest.raises(ConfigError, match=r"\A[^\n]*NCCL wants each worker .* got --workers 2\. Leave one[^\n]*\Z"):
        plan_of(two, trials_per_gpu="2", workers=2)
    assert plan_of(two, trials_per_gpu="1", workers=2).share.devices == 2


def test_the_plan_says_how_many_and_why(plan_of) -> None:
    three = plan_of(trials_per_gpu="3")
    assert three.share.describe() == "3 trials at a time, each with 1 worker of 5 CPU + 0.3333 GPU"
    assert three.share.devices == pytest.approx(1 / 3)
    assert words(three).startswith("3 trials share each GPU (--trials-per-gpu): each has at most 30 % of its memory")
    auto = plan_of(trials_per_gpu="auto")
    assert auto.share.concurrency == 1 and "1 trial on each GPU at first, later up to 4" in words(auto)
    assert words(plan_of()) == "" and plan_of().share.concurrency == 1


def test_without_a_gpu_nothing_is_shared_or_said(plan_of) -> None:
    cores = Machine((Node(16, 0, 64 * GIB),))
    alone = plan_of(cores)
    auto, two = plan_of(cores, trials_per_gpu="auto"), plan_of(cores, trials_per_gpu="2")
    assert alone.share == auto.share == two.share
    assert words(auto) == words(two) == ""


def test_a_resume_never_goes_above_the_number_at_which_memory_was_too_little(plan_of, monkeypatch) -> None:
    """A job that Slurm starts again repeats its command line."""
    first = plan_of(trials_per_gpu="3", study="s")
    stored = {**first.to_dict(), AT_MOST: first.sharing.without(3).at_most}
    monkeypatch.setattr(checked_plan, "resumed_description", lambda folder, storage: stored)
    again = plan_of(trials_per_gpu="3", study="s", resume=True)
    assert again.share.per_gpu == plan_of(study="s", resume=True).share.per_gpu == 2
    assert words(again) == "2 trials on each GPU: in this study 3 had too little memory"
    assert again.to_dict()[AT_MOST] == 2
    assert plan_of(trials_per_gpu="auto", study="s", resume=True).share.per_gpu == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPUs here")
def test_gpus_that_are_given_and_cannot_be_used_are_refused_in_torchs_words(monkeypatch):
    """As on a node whose driver is older than this torch: without this a search would train on the CPUs."""
    with pytest.raises((RuntimeError, AssertionError)) as reason:
        torch.cuda.init()
    for given in ({"CUDA_VISIBLE_DEVICES": "0"}, {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}):
        with monkeypatch.context() as set_here:
            set_here.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            for name, value in given.items():
                set_here.setenv(name, value)
            with pytest.raises(ConfigError, match="set CUDA_VISIBLE_DEVICES= to train") as refusal:
                local_machine()
            assert str(reason.value).partition(".")[0] in str(refusal.value)
            set_here.setenv("CUDA_VISIBLE_DEVICES", "")
            assert local_machine().gpus == 0


@pytest.fixture
def one_of_four(monkeypatch) -> None:
    """CUDA may open one H200 of a node's four, as beside a job whose control group closes the others."""
    for owner, name, value in (
        (torch._C, "_cuda_init", lambda: None),
        (torch._C, "_cuda_getDeviceCount", lambda: 1),
        (torch._C, "_cuda_getArchFlags", lambda: "sm_75 sm_80 sm_90 sm_120 compute_120"),
        (torch.cuda, "_device_count_nvml", lambda: 4),
        (torch.cuda, "get_device_capability", lambda device: (9, 0)),
        (torch.cuda, "_queued_calls", []),
        (torch.cuda, "_lazy_seed_tracker", torch.cuda._LazySeedTracker()),
        (torch.cuda, "_cached_device_count", None),
        (torch.cuda, "_initialized", False),
    ):
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(local_workers, "accelerator_files", lambda: ["/dev/nvidia0"])


def test_gpus_are_counted_that_cuda_may_open_not_all_that_nvml_knows(one_of_four) -> None:
    """Until CUDA is in use, torch asks NVML."""
    assert torch.cuda.is_available() and torch.cuda.device_count() == 4
    assert local_workers.local_gpu_count() == 1


def test_a_gpu_older_than_any_that_this_torch_was_built_for_is_none(one_of_four, monkeypatch) -> None:
    """A V100 with the wheels of CUDA 13: torch only warns, and each trial would fail at its first kernel."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert local_workers.local_gpu_count() == 0 and "the GPU is sm_70" in str(local_workers.unused_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ConfigError, match="got the GPU is sm_70, and this torch has code for sm_75 and newer. Install"):
        local_machine()


@pytest.mark.gpu
def test_who_plans_a_search_makes_no_context_on_a_gpu() -> None:
    """It would take memory from the trials as long as the search runs, and in exclusive mode the whole GPU."""
    code = "\n".join(
        (
            "from bigbatch.tune.plan.machine import local_machine",
            "import torch",
            "machine = local_machine()",
            "print(machine.gpus, machine.device_memory_bytes > 0, torch._C._cuda_hasPrimaryContext(0))",
        )
    )
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean_environment(), "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.stdout.split() == [str(torch.cuda.device_count()), "True", "False"], done.stderr
