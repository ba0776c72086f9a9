"""A Ray that does not start at once, as on a busy machine, and a walltime that is short; with stand-ins for both."""

import signal
import sys
import time
from pathlib import Path

import pytest

from bigbatch.cluster.record import job_record
from helpers.stand_in_ray import StandInJob, record_of, start_search


def start_on_busy_machine(folder: Path, timeout_s: int, fails: int, after_s: float, *words: str, **env) -> StandInJob:
    env |= {"STAND_IN_FAILS": str(fails), "STAND_IN_FAILS_AFTER_S": str(after_s)}
    words = (*words, "--start-timeout", str(timeout_s), "--", sys.executable, "-c", "print('RUNNING')")
    return StandInJob(folder, "7", *words, **env)


def search_with_stand_in_ray(folder: Path, **env: str) -> StandInJob:
    folder.mkdir(exist_ok=True)
    return StandInJob(folder, "7", "--start-timeout", "3", "--study", "s", "--space", "smoke", **env)


def test_ray_is_started_again_within_the_time_out(tmp_path):
    job = start_on_busy_machine(tmp_path, 30, 2, 1.2)
    assert job.end() == 0, job.log
    assert "RUNNING" in job.log and (tmp_path / "state" / "tries").read_text() == "xxx"
    assert job.log.count("timed out during startup.; trying again") == 1, "once, not at each try"


def test_a_start_that_fails_at_once_is_not_tried_again(tmp_path):
    job = start_on_busy_machine(tmp_path, 300, 99, 0.0)
    assert job.end() == 1 and (tmp_path / "state" / "tries").read_text() == "x", job.log


def test_a_job_that_was_put_back_again_and_again_without_a_word_of_its_own_ends(tmp_path):
    """As after a first node that goes down in each start."""
    record = job_record.JobRecord("7", "driver", restarts=3, fruitless_restarts=4)
    record.write({"BIGBATCH_HOME": str(tmp_path / "home")})
    job = start_on_busy_machine(tmp_path, 3, 0, 0.5, SLURM_RESTART_COUNT="4")
    assert job.end() == 1 and not (tmp_path / "state" / "tries").exists(), job.log
    assert "(1): no epoch or checkpoint came of 4 starts in a row (--max-restarts 3)" in job.log


def test_a_job_whose_ray_does_not_start_is_requeued_if_its_study_has_progress(tmp_path):
    saved = tmp_path / "runs" / "s" / "checkpoints" / "trial-0003" / "latest.pt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    job = search_with_stand_in_ray(tmp_path, STAND_IN_FAILS="99", STAND_IN_FAILS_AFTER_S="0.5")
    assert job.end() == 143 and "requeue 7" in job.calls, job.log


def test_a_node_that_cannot_load_what_trials_need_leaves_at_once_but_for_a_command_of_ones_own(tmp_path):
    lacks = {"STAND_IN_LACKS": "ImportError: libcudart.so.12:\n cannot open shared object file"}
    job = search_with_stand_in_ray(tmp_path / "search", **lacks)
    assert job.end() == 1 and (tmp_path / "search" / "state" / "tries").read_text() == "x", job.log
    why = "n1 cannot load what trials need: ImportError: libcudart.so.12: cannot open shared object file"
    assert f"head n1 is gone: {why}\n" in job.log
    (tmp_path / "own").mkdir()
    job = start_on_busy_machine(tmp_path / "own", 30, 0, 0.0, **lacks)
    assert job.end() == 0 and "RUNNING" in job.log, job.log


# A short walltime: what the job saves, and whether it starts again


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
