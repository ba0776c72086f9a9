"""The cores beside a GPU, where a node has several parts with memory of their own (NUMA). No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from pathlib import Path

SWITCH = "BIGBATCH_NEAR_CORES"
"""0: workers stay on all cores that the job has."""


def stay_near(gpu: str, cores: int, env: Mapping[str, str] = os.environ, sysfs: Path = Path("/sys")) -> None:
    """Keep this thread, and all threads and processes that it starts, on the cores of ``near_cores``."""
    if env.get(SWITCH) == "0" or not hasattr(os, "sched_setaffinity"):
        return
    if near := near_cores(gpu, cores, os.sched_getaffinity(0), sysfs):
        os.sched_setaffinity(0, near)


def near_cores(gpu: str, cores: int, allowed: Set[int], sysfs: Path = Path("/sys")) -> set[int]:
    """The part of ``allowed`` that is on the GPU's NUMA node, divided among all GPUs there: each has its own cores.

    Empty where nothing is gained, or something lost: the cores are on one node already, as where Slurm has bound them,
    or this part has fewer than the worker was given. Threads of one core stay together.

    Args:
        gpu: its PCI address, such as ``0000:dc:00.0``.
        cores: how many the worker was given.
        allowed: those that this process may use; the result has no other.
    """
    devices = sysfs / "bus/pci/devices"
    place = _facts(devices / gpu)
    beside = sorted(one.name for one in devices.glob("*") if _facts(one) == place)
    here = _cores_in(sysfs / f"devices/system/node/node{place[0]}/cpulist") & allowed
    if gpu not in beside or not here or here == allowed:
        return set()
    whole: dict[int, set[int]] = {}
    for core in sorted(here):
        siblings = _cores_in(sysfs / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        whole.setdefault(min(siblings | {core}), set()).add(core)
    parts, number, count = list(whole.values()), beside.index(gpu), len(beside)
    mine = set().union(*parts[len(parts) * number // count : len(parts) * (number + 1) // count])
    return mine if len(mine) >= cores else set()


def _facts(device: Path) -> tuple[str, str, str]:
    """NUMA node, maker and kind of a PCI device: alike for the same kind of GPU on a node."""
    node, vendor, kind = (_read(device / name) for name in ("numa_node", "vendor", "class"))
    return node, vendor, kind


def _cores_in(file: Path) -> set[int]:
    """``0-3,8`` as numbers."""
    ranges = [part.partition("-") for part in _read(file).split(",") if part]
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
