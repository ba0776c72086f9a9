"""How nodes are cut into workers of trials: against packing that is worked out anew here, over random clusters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.machine import Machine, Node, share_out

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


def clusters(count: int):
    for seed in range(count):
        rng = random.Random(seed)
        yield random_machine(rng), rng.choice((1, 1, 1, 2, 3, 4, 8)), rng.choice((1, 2, 4, 12, 16, 100))


def test_what_runs_at_once_always_fits_and_what_fits_nowhere_is_refused():
    refused = 0
    for machine, workers, trials in clusters(3000):
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
    assert 100 < refused < 2500, "both happen"


def test_no_gpu_is_left_idle_that_a_trial_could_use():
    met = 0
    for machine, workers, trials in clusters(3000):
        gpus = sum(node.gpus for node in machine.nodes)
        if not workers <= gpus:
            continue
        met += 1
        share = share_out(machine, workers, trials)
        assert share.worker_resources["GPU"] == 1
        left = place(machine, share.worker_resources, share.concurrency * workers)
        assert left is not None
        idle = sum(have for _, have, _ in left) // 10_000
        assert idle < workers or share.concurrency == trials, (machine, share)
        # More cores a worker would leave a GPU without: some GPU node has none to spare.
        more = {**share.worker_resources, "CPU": (share.worker_resources.get("CPU", 0) or 0) + 1}
        assert place(machine, more, gpus) is None
    assert met > 500


def brute_force(nodes: list[Node], workers: int, trials: int) -> int:
    """The most cores that any cut into equal workers of whole cores uses, each with memory for ResNet-18."""
    best = 0
    for cores in range(1, max(node.cpus for node in nodes) + 1):
        room = sum(min(node.cpus // cores, node.memory_bytes // (2 * GIB)) for node in nodes)
        best = max(best, min(room // workers, trials) * workers * cores)
    return best


def test_without_gpus_the_cores_are_used_as_far_as_memory_allows():
    met = 0
    for machine, workers, trials in clusters(3000):
        nodes = [node for node in machine.nodes if node.cpus and node.memory_bytes >= 2 * GIB]
        if machine.gpus or not nodes or not (best := brute_force(nodes, workers, trials)):
            continue
        met += 1
        share = share_out(machine, workers, trials)
        assert share.concurrency * workers * share.worker_resources["CPU"] >= 0.9 * best
    assert met > 300


def test_memory_bounds_the_workers_of_each_node_as_ray_counts():
    met = 0
    for machine, workers, trials in clusters(3000):
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
    assert met > 300


def test_two_nodes_of_one_core_run_a_trial_each():
    """`sbatch -N 2 -c 1 --mem=2500`: what Ray's nodes are given of it (cluster/node/ray_commands.py)."""
    share = share_out(Machine((Node(1, 0, 2_097_152_000),) * 2), 1, 8)
    assert (share.concurrency, share.worker_resources) == (2, {"CPU": 1.0})
    both = share_out(Machine((Node(1, 0, 2_097_152_000),) * 2), 2, 8)
    assert (both.concurrency, both.worker_resources) == (1, {"CPU": 1.0})


def test_a_head_without_gpus_takes_no_gpu_from_the_others():
    share = share_out(Machine((Node(64, 0, 256 * GIB), Node(8, 4, 64 * GIB), Node(8, 4, 64 * GIB))), 1, 100)
    assert (share.concurrency, share.worker_resources) == (8, {"CPU": 2.0, "GPU": 1.0})
    assert share_out(Machine((Node(64), Node(2, 4, 64 * GIB))), 2, 100).worker_resources == {"CPU": 0.5, "GPU": 1.0}
    assert share_out(Machine((Node(64), Node(0, 2, 64 * GIB))), 1, 100).worker_resources == {"GPU": 1.0}


def test_few_trials_at_a_time_where_the_cores_are_used_as_well_so():
    """At most a quarter of the trials, so that early stopping learns from earlier ones."""
    assert share_out(Machine((Node(8, 0, 64 * GIB),)), 1, 16).concurrency == 4
    assert share_out(Machine((Node(64, 0, 64 * GIB),) * 16), 1, 16).concurrency == 16, "no node is left over"


def test_the_smallest_device_counts():
    gpus = Machine((Node(64, 0, 256 * GIB), Node(8, 4, 64 * GIB, 80 * 10**9), Node(8, 4, 64 * GIB, 40 * 10**9)))
    assert gpus.device_memory_bytes == 40 * 10**9 and gpus.accelerator == "cuda"
    assert Machine((*gpus.nodes, Node(8, 4))).device_memory_bytes == 40 * 10**9, "one that did not answer"
    assert Machine((Node(8, 0, 64 * GIB), Node(8, 0, 16 * GIB), Node(8, 0, GIB))).device_memory_bytes == 16 * GIB


def test_nodes_in_words():
    machine = Machine((Node(1, 0, 2_100_000_000), Node(32, 4, 0, 80 * 10**9), Node(32, 4, 0, 80 * 10**9)))
    words = "2 nodes with 4 GPUs of 80 GB and 32 CPU cores, a node with 1 CPU core and 2.1 GB"
    assert machine.describe() == words
    stored: Any = machine.to_dict()
    assert stored["nodes"][1] == {
        "count": 2, "cpus": 32, "gpus": 4, "memory_bytes": 0, "gpu_memory_bytes": 80 * 10**9,
    }  # fmt: skip


def test_many_kinds_of_nodes_are_one_short_line():
    text = Machine(tuple(Node(cores, 0, 8 * GIB) for cores in range(1, 100))).describe()
    assert text.endswith(", 95 more") and len(text) < 200
