"""A worker's cores are beside its GPU, no other worker's, and never others than it had."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bigbatch.train_loop.host.ranks import SWITCH, near_cores, stay_near

GPUS = {"0000:1b:00.0": 0, "0000:4c:00.0": 0, "0000:9d:00.0": 1, "0000:dc:00.0": 1}
"""By node, of two with 4 cores of 2 threads: 0-3 and 8-11, 4-7 and 12-15."""


def made_tree(root: Path, cores: dict[int, str], siblings: dict[int, str], gpus: dict[str, int]) -> Path:
    """A sysfs with GPUs, and a network card on node 0."""
    files = {f"devices/system/node/node{node}/cpulist": text for node, text in cores.items()}
    files |= {f"devices/system/cpu/cpu{n}/topology/thread_siblings_list": text for n, text in siblings.items()}
    for address, node in {**gpus, "0000:18:00.0": 0}.items():
        folder = f"bus/pci/devices/{address}"
        kind = "0x030200" if address in gpus else "0x020000"
        files |= {f"{folder}/numa_node": str(node), f"{folder}/vendor": "0x10de", f"{folder}/class": kind}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    siblings = {core: f"{core % 8},{core % 8 + 8}" for core in range(16)}
    return made_tree(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, siblings, GPUS)


def test_each_gpu_has_its_own_whole_cores_of_its_node(two_nodes: Path) -> None:
    found = {gpu: near_cores(gpu, 4, set(range(16)), two_nodes) for gpu in GPUS}
    assert found == dict(zip(GPUS, [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}], strict=True))


@pytest.mark.parametrize(
    ("allowed", "cores", "mine"),
    [
        (set(range(16)), 5, set()),  # fewer than it was given
        ({0, 1, 2, 3}, 2, set()),  # bound to one node
        ({4, 5, 12, 13}, 2, set()),  # bound to the other node: its GPU's has none
        ({0, 1, 2, 3, 4, 5}, 2, {0, 1}),  # one thread a core; some belong to another job
        ({0, 2, 4, 6}, 1, {0}),
    ],
)
def test_it_keeps_to_what_the_job_has_and_takes_no_core_away(two_nodes: Path, allowed, cores, mine) -> None:
    assert near_cores("0000:1b:00.0", cores, allowed, two_nodes) == mine


def test_a_machine_of_one_node_and_one_that_says_nothing_change_nothing(tmp_path: Path) -> None:
    for number, node in enumerate((0, -1)):  # many virtual machines say -1
        root = made_tree(tmp_path / str(number), {0: "0-15"}, {}, dict.fromkeys(GPUS, node))
        assert near_cores("0000:1b:00.0", 1, set(range(16)), root) == set()
    assert near_cores("0000:ff:00.0", 1, set(range(16)), tmp_path / "nothing") == set()


def test_threads_and_processes_that_a_worker_starts_stay_there(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    gpu = "0000:1b:00.0"
    root = made_tree(tmp_path, {0: str(cores[0]), 1: ",".join(map(str, cores[1:]))}, {}, {gpu: 1})

    def started(env: dict[str, str]) -> str:
        stay_near(gpu, 1, env, root)
        with ThreadPoolExecutor(1) as pool:
            ask = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
            return pool.submit(subprocess.check_output, ask, text=True).result().strip()

    for env, there in (({SWITCH: "0"}, cores), ({}, cores[1:])):
        with ThreadPoolExecutor(1) as worker:  # only this thread is bound
            assert worker.submit(started, env).result() == str(there)
    assert sorted(os.sched_getaffinity(0)) == cores
