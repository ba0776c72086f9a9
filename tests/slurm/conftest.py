"""One virtual Slurm cluster for all tests of a session, tidied after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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


@pytest.fixture(autouse=True)
def _tidy_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: no jobs, no users' processes, all nodes on and idle."""
    if "cluster" not in request.fixturenames:
        yield
        return
    running: VirtualCluster = request.getfixturevalue("cluster")
    yield
    running.tidy()
