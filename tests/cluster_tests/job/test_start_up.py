"""A Ray that does not start at once, as on a busy machine; with the stand-ins of ``helpers.stand_in_ray``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bigbatch.cluster.record import job_record
from helpers.stand_in_ray import StandInJob


def start_on_busy_machine(folder: Path, timeout_s: int, fails: int, after_s: float, *words: str, **env) -> StandInJob:
    env |= {"STAND_IN_FAILS": str(fails), "STAND_IN_FAILS_AFTER_S": str(after_s)}
    words = (*words, "--start-timeout", str(timeout_s), "--", sys.executable, "-c", "print('RUNNING')")
    return StandInJob(folder, "7", *words, **env)


def test_ray_is_started_again_within_the_time_out(tmp_path):
    job = start_on_busy_machine(tmp_path, 30, 2, 1.2)
    assert job.end() == 0, job.log
    assert "RUNNING" in job.log and (tmp_path / "state" / "tries").read_text() == "xxx"
    assert job.log.count("timed out during startup.; trying again") == 1, "once, not at each try"


def test_a_start_that_fails_at_once_is_not_tried_again(tmp_path):
    job = start_on_busy_machine(tmp_path, 300, 99, 0.0)
    assert job.end() == 1 and (tmp_path / "state" / "tries").read_text() == "x", job.log


@pytest.mark.parametrize(("fruitless", "code"), [(None, 1), (0, 143), (3, 1)])
def test_a_job_whose_ray_does_not_start_is_requeued_if_it_has_progress(tmp_path, fruitless, code):
    """``fruitless``: of its last three starts; None: this is the first. At most three in a row are (--max-restarts)."""
    if fruitless is not None:
        record = job_record.JobRecord("7", "requeueing", restarts=3, fruitless_restarts=fruitless)
        record.write({"BIGBATCH_HOME": str(tmp_path / "home")})
    env = {"SLURM_RESTART_COUNT": "0" if fruitless is None else "3"}
    job = start_on_busy_machine(tmp_path, 3, 99, 0.5, **env)
    assert job.end() == code, job.log
    assert "the head n1 is not ready in time (--start-timeout): Ray did not start on n1 (exit code 1)" in job.log
    assert ("requeue 7" in job.calls) is (code == 143) and "RUNNING" not in job.log


def test_a_job_whose_ray_does_not_start_is_requeued_if_its_study_has_progress(tmp_path):
    saved = tmp_path / "runs" / "s" / "checkpoints" / "trial-0003" / "latest.pt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *--dry-run*) exit 0;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {"BIGBATCH_NODE_PYTHON": str(python), "STAND_IN_FAILS": "99", "STAND_IN_FAILS_AFTER_S": "0.5"}
    job = StandInJob(tmp_path, "7", "--start-timeout", "3", "--study", "s", "--space", "smoke", **env)
    assert job.end() == 143 and "requeue 7" in job.calls, job.log
