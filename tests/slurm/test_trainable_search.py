"""A search over a whole training function of the user's as a Slurm job: it saves near its time limit and goes on."""

from __future__ import annotations

import pytest

from helpers.trainables import CURVES
from ray_job import RayJob, trials_of
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.exhaustive]

EPOCHS, TRIALS = 4, 4


def test_a_job_with_a_training_function_saves_requeues_and_goes_on(cluster: VirtualCluster) -> None:
    data = cluster.folder("alice", "own")
    (data / "own.py").write_text(CURVES)
    for path in (data, data / "own.py"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    own = ("--trainable", f"{data}/own.py:train", "--space", f"{data}/own.py", "--objective", "score:max")
    few = ("--trials", str(TRIALS), "--max-epochs", str(EPOCHS), "--stopping", "none")
    job = RayJob(cluster, "alice", ("--time=30", "-N2", "-c1", "--mem=2500"), (*own, *few))
    job.wait_log(rf"trial \d+ epoch {EPOCHS}/{EPOCHS}: score")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    job.wait_log("→ requeueing")
    log = job.wait_end("COMPLETED")
    assert "driver saved and ended with exit code 143" in log
    trials = trials_of(job)
    assert [t.state.name for t in trials] == ["COMPLETE"] * TRIALS, job.everything()
    for trial in trials:
        assert trial.value == pytest.approx(trial.params["lr"])
        assert sorted(trial.intermediate_values) == list(range(1, EPOCHS + 1))
    assert job.leftovers() == []
