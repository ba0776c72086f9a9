"""Searches of parts of a user's own as Slurm jobs, whose worker is killed, and which save and go on: two examples."""

from __future__ import annotations

import re
import shutil

import pytest

from helpers.paths import ROOT
from helpers.waiting import wait_until
from ray_job import RayJob, trials_of
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.exhaustive]

TRIALS = 2
EXAMPLES = {
    "segmentation.py": (
        "torchmetrics",
        4,
        "--data {}:data --model {}:net --loss {}:dice --metric {}:miou --objective val_miou:max --batch 64",
    ),
    "lightning_trainable.py": ("lightning", 60, "--trainable {} --space {} --objective accuracy:max"),
}
"""The library that it needs, its epochs (more where they are short: the search must not end before the requeue), and
its options."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_survives_a_killed_worker_and_a_requeue(cluster: VirtualCluster, name: str) -> None:
    library, epochs, words = EXAMPLES[name]
    if library:
        pytest.importorskip(library)
    folder = cluster.folder("alice", "own")
    folder.chmod(0o755)
    path = folder / name
    shutil.copyfile(ROOT / "examples" / name, path)
    path.chmod(0o644)
    few = ("--trials", str(TRIALS), "--max-epochs", str(epochs), "--stopping", "none", "--strategy", "random")
    arguments = (*words.replace("{}", str(path)).split(), *few, "--confirm", "none", "--seed", "0")
    job = RayJob(cluster, "alice", ("--time=30", "-N2", "-c1", "--mem=3000"), arguments, HF_HUB_OFFLINE="1")

    first = job.wait_log(rf"trial (\d+) epoch 1/{epochs}: ")
    _kill_a_worker(cluster)
    job.wait_log(rf"trial {first[1]} starts its workers again")
    job.wait_log(rf"trial {first[1]} epoch [2-9]/{epochs}: ")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    job.wait_log("→ requeueing")
    log = job.wait_end("COMPLETED", 600)

    assert "driver saved and ended with exit code 143" in log
    trials = trials_of(job)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * TRIALS, job.everything()
    for trial in trials:
        assert sorted(trial.intermediate_values) == list(range(1, epochs + 1)), job.everything()
    # A few epochs need not teach a network anything, and then the search says so.
    assert re.search(r"^(The best is trial \d+: |The answer is batch \d+ |Nothing has learned yet: )", log, re.M), log
    assert job.leftovers() == []


def _kill_a_worker(cluster: VirtualCluster) -> None:
    """The process that trains, as if the node had run out of memory."""

    def workers() -> list[tuple[str, int]]:
        found = [(node, *process) for node in cluster.nodes for process in cluster.processes(node, "alice")]
        return [(node, pid) for node, pid, line in found if line.startswith("ray::") and "RayTrainWorker" in line]

    wait_until(lambda: bool(workers()), "no worker", 60, 0.1)
    for node, pid in workers():
        cluster.run(node, "kill", "-9", pid)
