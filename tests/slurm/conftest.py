"""One virtual Slurm cluster for all tests of a session, tidied after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import stand_in_ray
from ray_job import RayJob
from virtual_cluster import VirtualCluster


@pytest.fixture(scope="session")
def slurm_machine() -> None:
    """Skips where no virtual cluster can run."""
    if reason := VirtualCluster.available():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(slurm_machine: None) -> Iterator[VirtualCluster]:
    """Three nodes with two CPUs and two GPUs each. Started by the first test that asks for it."""
    with VirtualCluster() as running:
        yield running


@pytest.fixture(scope="session")
def stand_in(cluster: VirtualCluster) -> Path:
    """A folder with a package ``ray`` that starts in a moment."""
    folder = cluster.folder("alice", "stand-in")
    stand_in_ray.install(folder)
    return folder


@pytest.fixture
def submit_stand_in(cluster: VirtualCluster, stand_in: Path) -> Callable[..., RayJob]:
    """Submits a job of alice's whose Ray is the stand-in."""

    def start(*arguments: str, sbatch: tuple[str, ...] = (), **env: str) -> RayJob:
        state = cluster.folder("alice", "state")
        env |= {"PYTHONPATH": str(stand_in), "STAND_IN_STATE": str(state)}
        return RayJob(cluster, "alice", sbatch, arguments, **env)

    return start


@pytest.fixture(autouse=True)
def _tidy_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: no jobs, no users' processes, all nodes on and idle."""
    if "cluster" not in request.fixturenames:
        yield
        return
    running: VirtualCluster = request.getfixturevalue("cluster")
    yield
    running.tidy()
