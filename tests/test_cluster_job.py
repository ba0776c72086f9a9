"""A job of one node from its start to its end, with stand-ins for Slurm's commands and for Ray.

What needs Slurm itself is in tests/slurm; here is what its commands say, or do not say, at a bad moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from stand_in_ray import StandInJob

DRIVER = textwrap.dedent("""
    import signal, sys, time
    def save(*_):
        print("SAVED", flush=True); sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    print("RUNNING", flush=True)
    time.sleep(600)
""")
PREEMPTED = "JobState=RUNNING PreemptTime=2026-11-21T10:00:00"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StandInJob]]:
    """Starts job 7 and waits until its driver runs."""
    jobs: list[StandInJob] = []

    def run(*options: str, **env: str) -> StandInJob:
        env |= {"BIGBATCH_FIRST_ANSWER_S": "0.5"}
        jobs.append(StandInJob(tmp_path, "7", *options, "--", sys.executable, "-c", DRIVER, **env))
        jobs[-1].wait_log("RUNNING")
        return jobs[-1]

    yield run
    for job in jobs:
        job.process.kill()
        job.process.wait()


def test_a_signal_that_nobody_explains_saves_and_is_settled_when_slurm_answers(start, tmp_path):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGTERM)
    job.wait_log("does not say why yet; saving in any case")
    job.wait_log("driver saved and ended with exit code 143")
    assert not job.calls, "neither requeued nor given up"
    job.says(PREEMPTED)
    (tmp_path / "down").unlink()
    assert job.end() == 143
    assert "requeue 7" in job.calls and "→ requeueing (143): the job is preempted" in job.log


def test_a_cancelled_job_whose_signal_nobody_explained_is_not_requeued(start, tmp_path):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGTERM)
    job.wait_log("driver saved")
    job.says("JobState=CANCELLED")
    (tmp_path / "down").unlink()
    assert job.end() == 143
    assert job.calls == "" and "→ ended (143): the job is cancelled" in job.log


def test_a_requeue_that_the_controller_does_not_hear_is_tried_again(start, tmp_path):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGUSR1)
    job.wait_log("→ requeueing")
    (tmp_path / "down").unlink()
    assert job.end() == 143 and job.calls.splitlines()[0] == "requeue 7"


def test_a_job_that_slurm_requeues_while_it_is_about_to_is_left_to_slurm(start, tmp_path):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGUSR1)
    job.wait_log("→ requeueing")
    job.says("JobState=PENDING,COMPLETING")
    job.process.send_signal(signal.SIGTERM)  # the grace time is over
    job.wait_log("does not say why yet")
    (tmp_path / "down").unlink()
    assert job.end() == 143
    assert "requeue 7" not in job.calls and "StartTime=now" in job.calls and "→ requeueing (143)" in job.log


def test_a_preempted_job_with_chain_submits_a_successor_and_names_it(start, tmp_path):
    job = start("--chain")
    job.says(PREEMPTED)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert "--dependency=afterany:7" in job.calls and "requeue" not in job.calls
    record = json.loads((tmp_path / "home" / "jobs" / "7" / "job.json").read_text())
    assert (record["successor"], record["state"]) == ("6", "requeueing")


def test_a_successor_whose_submission_was_not_answered_is_found_and_not_submitted_again(start, tmp_path):
    job = start("--chain")
    heard = f"""#!/bin/sh
for word; do case "$word" in --comment=*) echo "6|${{word#--comment=}}" >> {tmp_path}/queue;; esac; done
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1
"""
    (tmp_path / "bin" / "sbatch").write_text(heard)
    # Busy for a while: silent to the first question, too.
    busy = f"mv {tmp_path}/busy {tmp_path}/idle 2>/dev/null && {{ echo 'Socket timed out' >&2; exit 1; }}"
    (tmp_path / "bin" / "squeue").write_text(f'#!/bin/sh\n{busy}\necho "5|"; cat {tmp_path}/queue\n')
    (tmp_path / "busy").touch()
    job.says(PREEMPTED)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert (tmp_path / "queue").read_text() == "6|bigbatch-after-7\n", "submitted once"
    assert "job 6 goes on when this one has ended" in job.log
    assert json.loads((tmp_path / "home" / "jobs" / "7" / "job.json").read_text())["successor"] == "6"


def test_a_late_answer_does_not_give_the_driver_time_that_slurm_does_not_give(tmp_path):
    """Slurm kills 12 s after its signal, so the driver has 8; with the answer's time added it would have 11 or more."""
    driver = DRIVER.replace("print(", "time.sleep(10.5); print(", 1)
    words = ("--", sys.executable, "-c", driver)
    job = StandInJob(tmp_path, "7", *words, KILL_WAIT="12", BIGBATCH_FIRST_ANSWER_S="0.5")
    job.wait_log("RUNNING")
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGTERM)
    job.wait_log("saving in any case")
    time.sleep(3)  # the answer comes a second later at most, long before the driver's time is over
    job.says("JobState=PREEMPTED,COMPLETING")
    (tmp_path / "down").unlink()
    assert job.end() == 143
    assert job.log.index("Slurm says PREEMPTED") < job.log.index("driver killed") and "SAVED" not in job.log


@pytest.mark.parametrize("answers", [True, False], ids=["answers later", "never answers"])
def test_a_requeued_job_waits_for_a_silent_controller(tmp_path, answers):
    """SLURM_JOB_END_TIME is missing, as in Slurm 22.05: the job must ask."""
    (tmp_path / "down").touch()
    words = ("--", sys.executable, "-c", "print('RUNNING')")
    job = StandInJob(tmp_path, "7", *words, SLURM_JOB_END_TIME="", SLURM_RESTART_COUNT="1")
    job.wait_log("Unable to contact slurm controller (connect failure); asking on")
    if answers:
        (tmp_path / "down").unlink()
    else:
        job.process.send_signal(signal.SIGTERM)
    assert job.end() == (0 if answers else 2), job.log
    assert ("RUNNING" in job.log) is answers and "Traceback" not in job.log


def test_the_batch_script_finds_the_repository_when_the_controller_answers_again(tmp_path):
    script = f"""#!/bin/sh
[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; echo 'Unable to contact slurm controller' >&2; exit 1; }}
echo '   Command={ROOT}/cluster/ray_head_workers.slurm --space smoke'
"""
    (tmp_path / "scontrol").write_text(script)
    (tmp_path / "python").write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    for name in ("scontrol", "python"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "BIGBATCH_PYTHON": str(tmp_path / "python")}
    batch = (ROOT / "cluster" / "ray_head_workers.slurm").read_text()
    done = subprocess.run(["bash", "-s", "a"], input=batch, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{ROOT} -m cluster.job a\n", done.stderr


def test_a_refused_requeue_ends_the_job_in_one_line(start, tmp_path):
    job = start()
    refuse = '#!/bin/sh\ncase "$*" in requeue*) echo "Requested operation is presently disabled" >&2; exit 1;; esac\n'
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(refuse + scontrol.read_text())
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 1
    assert "cannot start again: scontrol failed: Requested operation is presently disabled" in job.log
    assert job.log.count("Traceback") == 0


def test_a_command_of_ones_own_runs_in_the_container_like_ray(tmp_path):
    """Apptainer replaced by a program that notes its words and runs what comes after the image."""
    words = {"BIGBATCH_NODE_PYTHON": str(ROOT / "cluster" / "in_container.sh"), "BIGBATCH_ROOT": str(ROOT)}
    words |= {"BIGBATCH_CONTAINER": "/i.sif", "BIGBATCH_CONTAINER_PYTHON": sys.executable}
    apptainer = tmp_path / "tools" / "apptainer"
    apptainer.parent.mkdir()
    apptainer.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nwhile [ "$1" != /i.sif ]; do shift; done\nshift\nexec "$@"\n'
    )
    apptainer.chmod(0o755)
    path = f"{tmp_path}/bin:{apptainer.parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as local:
        words |= {"SLURM_TMPDIR": local}
        job = StandInJob(tmp_path, "7", "--", "echo", "IN THE IMAGE", "--command", PATH=path, **words)
        assert job.end() == 0, job.log
    called = (tmp_path / "called").read_text()
    assert "\nIN THE IMAGE --command\n" in job.log and "/i.sif echo IN THE IMAGE --command\n" in called
    driver = next(line for line in called.splitlines() if "IN THE IMAGE" in line)
    assert f"--bind {local} " in driver, "where the head's Ray has its sockets"
    assert f"/i.sif {sys.executable} -m ray.scripts.scripts start" in called
    assert f"/i.sif {sys.executable} -m cluster.gcs watch" in called


def test_a_search_that_was_cut_short_says_with_which_options_it_goes_on(tmp_path):
    study = tmp_path / "runs" / "s"
    job = StandInJob(tmp_path, "7", "--study", "s", "--space", "smoke")
    job.wait_log("→ head")  # the search's own check of its arguments still runs
    (study / "study.json").write_text("{}")
    job.says("JobState=CANCELLED")
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.log
    assert f"in place of the search's options: --output {study.parent} --study s --resume" in job.log
    assert "Traceback" not in job.log and not (study / ".lease").exists()
