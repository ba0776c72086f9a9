"""A job of one node from its start to its end, with stand-ins for Slurm's commands and for Ray.

What needs Slurm itself is in tests/slurm; here is what its commands say, or do not say, at a bad moment.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bigbatch.base import processes
from bigbatch.cluster.record.job_record import JobRecord
from helpers.paths import ROOT
from helpers.processes import program
from helpers.stand_in_ray import StandInJob, record_of, start_search

DRIVER = textwrap.dedent("""
    import signal, sys
    def save(*_):
        print("SAVED", flush=True); sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    print("RUNNING", flush=True)
    signal.pause()
""")
PREEMPTED = "JobState=RUNNING PreemptTime=2026-11-21T10:00:00"


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def scontrol_refuses(folder: Path, words: str, answer: str) -> None:
    scontrol = folder / "bin" / "scontrol"
    program(scontrol, f'case "$*" in {words}) echo "{answer}" >&2; exit 1;; esac\n{scontrol.read_text()}')


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


@pytest.mark.parametrize(
    ("answer", "calls", "end"),
    [
        (PREEMPTED, "requeue 7\n", "→ requeueing (143): the job is preempted"),
        ("JobState=CANCELLED", "", "→ ended (143): the job is cancelled"),
    ],
    ids=["preempted", "cancelled"],
)
def test_a_signal_that_nobody_explains_saves_and_is_settled_when_slurm_answers(start, tmp_path, answer, calls, end):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGTERM)
    job.wait_log("does not say why yet; saving in any case")
    job.wait_log("driver saved and ended with exit code 143")
    assert not job.calls, "neither requeued nor given up"
    job.says(answer)
    (tmp_path / "down").unlink()
    assert job.end() == 143
    assert job.calls.startswith(calls) and bool(job.calls) == bool(calls) and end in job.log


def test_a_sigterm_to_the_steps_alone_saves_and_requeues(start, tmp_path):
    """``scancel --signal=TERM 7`` reaches the steps, not the batch script."""
    job = start()
    steps = processes.descendants(job.process.pid)
    os.kill(next(pid for pid in steps if "bigbatch.cluster.node --" in command_line(pid)), signal.SIGTERM)
    assert job.end() == 143, job.log
    assert "SAVED" in job.log and "is gone" not in job.log and "requeue 7" in job.calls, job.log


def test_a_requeue_that_the_controller_does_not_hear_is_tried_again(start, tmp_path):
    job = start()
    (tmp_path / "down").touch()
    job.process.send_signal(signal.SIGUSR2)  # --signal may name either
    job.wait_log("→ requeueing")
    (tmp_path / "down").unlink()
    assert "SIGUSR2: the time limit is near" in job.log
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


REQUEUED = "JobState=COMPLETING Restarts=3 PreemptTime=None"


@pytest.mark.parametrize("cancelled", [False, True], ids=["starts again", "cancelled after that"])
def test_a_job_that_somebody_requeues_is_left_to_slurm_and_says_so(start, tmp_path, cancelled):
    job = start(SLURM_RESTART_COUNT="2")
    if cancelled:
        scontrol_refuses(tmp_path, "*StartTime*", "Job is no longer pending execution")
    job.says(REQUEUED)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert "SAVED" in job.log and "requeue 7" not in job.calls
    if cancelled:
        assert "→ ended (143): the job is cancelled" in job.log and job.calls == ""
    else:
        assert "→ requeueing (143): Slurm has put the job back" in job.log and "StartTime=now" in job.calls


def test_a_preempted_job_with_chain_submits_a_successor_and_names_it(start, tmp_path):
    job = start("--chain")
    job.says(PREEMPTED)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert "--dependency=afterany:7" in job.calls and "requeue" not in job.calls
    assert (record_of(tmp_path)["successor"], record_of(tmp_path)["state"]) == ("6", "requeueing")


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
    job.says(f"{PREEMPTED} Comment=(null)")
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert (tmp_path / "queue").read_text() == "6|bigbatch-after-7\n", "submitted once"
    assert "job 6 goes on when this one has ended" in job.log
    assert record_of(tmp_path)["successor"] == "6"


@pytest.mark.parametrize("answers", [True, False], ids=["answers later", "never answers"])
def test_a_requeued_job_waits_for_a_silent_controller(tmp_path, answers):
    """SLURM_JOB_END_TIME is missing, as in Slurm 22.05: the job must ask."""
    (tmp_path / "down").touch()
    words = ("--", sys.executable, "-c", "print('RUNNING')")
    job = StandInJob(tmp_path, "7", *words, SLURM_JOB_END_TIME="", SLURM_RESTART_COUNT="1")
    job.wait_log("Unable to contact slurm controller (connect failure); trying again")
    if answers:
        (tmp_path / "down").unlink()
    else:
        job.process.send_signal(signal.SIGTERM)
    assert job.end() == (0 if answers else 2), job.log
    assert ("RUNNING" in job.log) is answers and "Traceback" not in job.log


def test_the_batch_script_finds_the_repository_when_the_controller_answers_again(tmp_path):
    cluster, script = tmp_path / "check out of mine" / "cluster", "ray_head_workers.slurm"
    (cluster / "job").mkdir(parents=True)
    (cluster / "job" / "__main__.py").touch()
    (cluster.parent / "src" / "bigbatch").mkdir(parents=True)
    shutil.copy(ROOT / "cluster" / script, cluster)
    silent = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; echo 'Unable to contact' >&2; exit 1; }}"
    command = f"echo '   Command={cluster / script} 12 --output a b/cluster/x'"
    program(tmp_path / "scontrol", f"{silent}\necho 'JobId=7'\n{command}")
    # A warning may come before the job has begun to listen.
    program(tmp_path / "python", 'kill -USR1 $$; kill -USR2 $$; echo "$PWD" "$@"')
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "BIGBATCH_PYTHON": str(tmp_path / "python")}
    env["SLURMD_NODENAME"] = "n1"
    batch = (ROOT / "cluster" / script).read_text()
    done = subprocess.run(["bash", "-s", "12"], input=batch, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{cluster.parent}/src -m bigbatch.cluster.job 12\n", done.stderr


@pytest.mark.parametrize("more", [{}, {"SLURMD_NODENAME": "n2", "SLURM_PROCID": "1"}], ids=["salloc", "srun"])
def test_the_batch_script_in_a_login_nodes_shell_or_a_second_task_says_how_to_submit_it(more):
    """In either Ray would not start: on another host than its head, or in memory that srun's own step has."""
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "BIGBATCH_ROOT": str(ROOT), "BIGBATCH_PYTHON": "/bin/true"}
    command = ["bash", str(ROOT / "cluster" / "ray_head_workers.slurm"), "--space", "smoke"]
    done = subprocess.run(command, env=env | more, capture_output=True, text=True)
    assert done.returncode == 2 and "this is a batch script. Write: sbatch" in done.stderr, done.stderr


def test_a_restart_that_is_refused_says_so_in_the_record_too(tmp_path):
    """Its limit was lowered while it waited: `queue --all` must not go on to show why it was requeued."""
    JobRecord("7", "requeueing", reason="the time limit is near").write({"BIGBATCH_HOME": f"{tmp_path}/home"})
    soon = {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_END_TIME": str(int(time.time() + 100))}
    job = StandInJob(tmp_path, "7", "--study", "s", "--space", "smoke", **soon)
    assert job.end() == 2 and "time limit must leave 60 s" in job.log, job.log
    record = record_of(tmp_path)
    assert record["state"] == "ended" and "time limit must leave 60 s" in record["reason"]


def test_folders_with_blanks_in_their_names(tmp_path):
    """Of the records, the study, the temporary files, and the script that is submitted again."""
    folder = tmp_path / "my files"
    script = folder / "job scripts" / "my job.slurm"
    script.parent.mkdir(parents=True)
    script.touch()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t ") as local:
        study = folder / "my runs" / "s"
        words = ("--chain", "--output", str(study.parent), "--data", "a b")
        job = start_search(folder, "true", *words, SLURM_TMPDIR=local)
        job.says(f"JobState=RUNNING Command={script} --data a b WorkDir={folder} StdOut={folder}/my log")
        job.process.send_signal(signal.SIGUSR1)
        assert job.end() == 143, job.log
        assert list(Path(local).iterdir()) == []
    sent = (folder / "calls").read_text()
    assert f"--output={folder}/my log" in sent
    assert f"{script} --chain --output {study.parent} --data a b --study s" in sent
    assert record_of(folder)["study_folder"] == str(study) and study.is_dir() and not (study / ".lease").exists()


def test_a_refused_requeue_ends_the_job_in_one_line(start, tmp_path):
    job = start()
    scontrol_refuses(tmp_path, "requeue*", "Requested operation is presently disabled")
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 1
    assert "cannot start again: scontrol failed: Requested operation is presently disabled" in job.log
    assert job.log.count("Traceback") == 0


def test_a_command_of_ones_own_runs_in_the_container_like_ray(tmp_path):
    """Apptainer replaced by a program that notes its words and runs what comes after the image."""
    words = {"BIGBATCH_NODE_PYTHON": str(ROOT / "cluster" / "in_container.sh"), "BIGBATCH_ROOT": str(ROOT)}
    words |= {"BIGBATCH_CONTAINER": "/i.sif", "BIGBATCH_CONTAINER_PYTHON": sys.executable}
    (tmp_path / "tools").mkdir()
    notes = f'echo "$@" >> {tmp_path}/called\nwhile [ "$1" != /i.sif ]; do shift; done\nshift\nexec "$@"'
    program(tmp_path / "tools" / "apptainer", notes)
    path = f"{tmp_path}/bin:{tmp_path}/tools:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as local:
        words |= {"SLURM_TMPDIR": local}
        job = StandInJob(tmp_path, "7", "--", "echo", "IN THE IMAGE", "--command", PATH=path, **words)
        assert job.end() == 0, job.log
    called = (tmp_path / "called").read_text()
    assert "\nIN THE IMAGE --command\n" in job.log and "/i.sif echo IN THE IMAGE --command\n" in called
    driver = next(line for line in called.splitlines() if "IN THE IMAGE" in line)
    assert f"--bind {local} " in driver, "where the head's Ray has its sockets"
    assert f"/i.sif {sys.executable} -m ray.scripts.scripts start" in called
    assert f"/i.sif {sys.executable} -m bigbatch.cluster.node.gcs watch" in called
    assert "bigbatch.cluster.node --" not in called, "a node's wrapper, which calls Slurm's commands, stays outside"


def test_a_search_that_was_cut_short_says_with_which_options_it_goes_on(tmp_path):
    study = tmp_path / "runs" / "s"
    job = start_search(tmp_path, ":")
    (study / "study.json").write_text("{}")
    job.says("JobState=CANCELLED")
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.log
    assert f"with these options instead of the search's: --output {study.parent} --study s --resume" in job.log
    assert "Traceback" not in job.log and not (study / ".lease").exists()


def test_a_search_that_was_killed_and_could_not_say_how_it_goes_on_is_followed_by_that(tmp_path):
    kill = 'case "$*" in */tune/run.py*) echo {} > runs/s/study.json; kill -9 $$;; *) exec "'
    python = program(tmp_path / "python", f'{kill}{sys.executable}" "$@";; esac')
    job = StandInJob(tmp_path, "7", "--study", "s", "--space", "smoke", BIGBATCH_NODE_PYTHON=str(python))
    assert job.end() == 137 and f"search's: --output {tmp_path}/runs --study s --resume" in job.log, job.log


def test_a_job_without_slurms_commands_is_refused_before_anything_starts(tmp_path):
    tools = tmp_path / "tools"  # and no Slurm of this machine
    tools.mkdir()
    for name in ("sh", "cat", "touch"):
        (tools / name).symlink_to(shutil.which(name))
    folder = tmp_path / "job"
    folder.mkdir()
    job = StandInJob(folder, "7", "--space", "smoke", without="srun", PATH=f"{folder}/bin:{tools}")
    assert job.end() == 2
    assert job.log.startswith("ray_head_workers.slurm: error: ") and len(job.log.splitlines()) == 1, job.log
    assert " srun " in job.log and "is not on PATH" in job.log and not (folder / "home").exists()


@pytest.mark.parametrize(
    ("env", "answer", "expected"),
    [
        ({"SLURM_SUBMIT_HOST": "login7.site"}, "", "a study must be on a file system that the nodes share; got"),
        ({}, "WorkDir=/home/me/only there", "the job's work folder must be on a file system that the nodes see; got"),
    ],
)
def test_a_study_never_lands_on_a_nodes_own_disk_in_silence(tmp_path, env, answer, expected):
    """Where Slurm cannot go to the work folder, it runs the job in the node's /tmp."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as own:  # each node has such a folder of its own
        words = ("--space", "smoke", "--output", f"{own}/runs")
        job = StandInJob(tmp_path, "7", *words, answer=f"JobState=RUNNING {answer}", **env)
        assert job.end() == 2 and os.listdir(own) == []
    assert job.log.startswith("ray_head_workers.slurm: error: ") and len(job.log.splitlines()) == 1, job.log
    assert expected in job.log and not (tmp_path / "home").exists()


def test_a_start_that_ends_without_a_word_counts_as_fruitless(tmp_path):
    job = StandInJob(tmp_path, "7", "--", "sleep", "600")
    job.wait_log("→ driver")
    steps = processes.descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    for pid in steps:  # as Slurm does
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (record_of(tmp_path)["restarts"], record_of(tmp_path)["fruitless_restarts"]) == (0, 1)
