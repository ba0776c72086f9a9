"""A job of one node whose walltime is short: what it saves, and whether it starts again. Stand-ins as in
test_one_node_job.py."""

from __future__ import annotations

import signal
import time

import pytest

from bigbatch.cluster.record import job_record
from helpers.stand_in_ray import StandInJob, record_of, start_search
from helpers.waiting import wait_until


def test_a_walltime_of_less_than_a_minute_before_the_margin_is_refused_before_anything_starts(tmp_path):
    end = f"{time.time() + 170:.0f}"
    job = StandInJob(tmp_path, "7", "--study", "s", "--space", "smoke", SLURM_JOB_END_TIME=end)
    assert job.end() == 2
    assert job.log.startswith("ray_head_workers.slurm: error: ") and len(job.log.splitlines()) == 1
    assert "Write sbatch --time=4 or more" in job.log and not (tmp_path / "home").exists()


@pytest.mark.parametrize("saves", ["a checkpoint", "nothing"])
def test_a_start_that_saved_a_checkpoint_within_an_epoch_was_of_use(tmp_path, saves):
    place = tmp_path / "runs" / "s" / "checkpoints" / "trial-0003"
    job = start_search(tmp_path, f"mkdir -p {place} && echo state > {place}/latest.pt" if saves != "nothing" else ":")
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 143 and "requeue 7" in job.calls
    assert record_of(tmp_path)["fruitless_restarts"] == (0 if saves == "a checkpoint" else 1)
    assert ("no epoch ended in this start; trials continue" in job.log) is (saves == "a checkpoint")


@pytest.mark.exhaustive  # waits for a time limit
@pytest.mark.parametrize("useful_before", [False, True])
def test_a_walltime_that_is_too_short_for_a_first_checkpoint_ends_the_job_at_once(tmp_path, useful_before):
    """Of no further start, unless an earlier one of the same length was of use."""
    if useful_before:
        env = {"BIGBATCH_HOME": str(tmp_path / "home")}
        job_record.JobRecord("7", "requeueing", restarts=2, fruitless_restarts=0).write(env)
    end = time.time() + 60 + 60 + 10  # a margin of 60 s, the least that is taken, and 10 s of which it uses some
    env = {"SLURM_JOB_END_TIME": f"{end:.0f}", "SLURM_RESTART_COUNT": "3" if useful_before else "0"}
    job = start_search(tmp_path, ":", "--margin", "60", **env)
    wait_until(lambda: time.time() > end - 119, "a moment that the clock must reach")
    job.process.send_signal(signal.SIGUSR1)  # Slurm's may come a minute before the margin
    assert job.end() == (143 if useful_before else 1)
    assert ("requeue 7" in job.calls) is useful_before
    reason = "no trial came to a first checkpoint in the"
    assert (reason in record_of(tmp_path)["reason"] and "Write sbatch --time=5 or more" in job.log) is not useful_before
