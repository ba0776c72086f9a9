"""What another node does for a job whose first node is lost, and which starts count."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bigbatch.base import json_values, processes
from bigbatch.cluster.job import __main__ as job
from bigbatch.cluster.job import lost_host, restart
from bigbatch.cluster.record import job_record
from helpers.stand_in_ray import StandInJob
from helpers.stand_in_slurm import stand_in

RUNS = "JobState=RUNNING Restarts=2"
NOT_YET = "Job update not available right now, the DB index is being set, try again in a bit"


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Runs ``python -m bigbatch.cluster.job --host-lost …`` in start 2 of job 7. Returns what Slurm was told to do."""

    def run(*arguments: str, answer: str = RUNS, fruitless: int = 1, refused: str = "", not_yet: int = 0) -> str:
        calls = tmp_path / "calls"
        refuse = f'case "$*" in *requeue*) [ -z "{refused}" ] || {{ echo "{refused}" >&2; exit 1; }};; esac'
        fields = f"JobId=7 {answer} Command={tmp_path}/job.slurm NumNodes=1 Partition=main"
        ask = f'case "$*" in *"show job"*) echo "{fields}"; exit;; *show*) echo n1; exit;; esac'
        later = f'case "$*" in update*) echo >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt {not_yet} ] || {{ '
        later += f'echo "{NOT_YET}" >&2; exit 1; }};; esac'
        commands = dict.fromkeys(("scancel", "squeue"), f'echo "$(basename $0) $*" >> {calls}')
        commands |= {
            "scontrol": f'{ask}\n{refuse}\n{later}\necho "$*" >> {calls}',
            "sinfo": "echo n2",  # another node, so that the lost one may be excluded
            "sbatch": f'echo "sbatch $*" >> {calls}; echo 8',
        }
        stand_in(tmp_path, monkeypatch, **commands)
        for name, value in {"JOB_ID": "7", "RESTART_COUNT": "2"}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.setenv("BIGBATCH_HOME", str(tmp_path / "home"))
        (tmp_path / "job.slurm").touch()
        record = job_record.JobRecord("7", "driver", head="n1", fruitless_restarts=fruitless, log=f"{tmp_path}/log")
        record.write()
        words = ["--host-lost", *arguments, "--space", "smoke"]
        monkeypatch.setattr(sys, "argv", ["job", *words])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            assert job.main(words) == 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return calls.read_text() if calls.exists() else ""

    return run


def state(tmp_path: Path) -> tuple[str, str]:
    values = json_values.json_object((tmp_path / "home" / "jobs" / "7" / "job.json").read_text())
    return json_values.text(values, "state"), json_values.text(values, "reason")


def test_the_job_goes_back_into_the_queue_without_its_first_node(act, tmp_path):
    calls = act().splitlines()
    assert "requeue 7" in calls and any("StartTime=now" in call for call in calls)
    assert not any("scancel" in call for call in calls)
    assert state(tmp_path) == ("requeueing", "the head node is lost, and the batch script with it")
    assert "requeue: the head node is lost" in (tmp_path / "log").read_text()
    assert job_record.read_record("7").excluded.keys() == {"n1"}


def test_a_change_that_slurm_cannot_make_yet_is_made_later(act, tmp_path, monkeypatch):
    monkeypatch.setattr(restart.time, "sleep", lambda seconds: None)
    updates = [call for call in act(not_yet=25).splitlines() if call.startswith("update")]
    assert [call.split()[2].partition("=")[0] for call in updates] == ["ExcNodeList", "StartTime"]
    log = (tmp_path / "log").read_text()
    assert "nodes that the job avoids from now on: n1" in log and "two minutes" not in log


def test_a_change_that_slurm_cannot_make_for_long_is_given_up_with_its_words(act, tmp_path, monkeypatch):
    monkeypatch.setattr(restart.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(lost_host, "NOT_YET_S", 0.0)
    assert not any(call.startswith("update") for call in act(not_yet=1000).splitlines())
    log = (tmp_path / "log").read_text()
    assert f"nodes are not excluded: scontrol failed: {NOT_YET}" in log and "starts in about two minutes" in log
    assert state(tmp_path)[0] == "requeueing"


def test_the_record_is_written_before_slurm_kills_what_requeues(act, tmp_path, monkeypatch):
    def killed(seconds: float) -> None:
        raise SystemExit("KillWait is over")

    # Of this module alone: a busy machine lets others sleep before the requeue.
    monkeypatch.setattr(restart, "time", SimpleNamespace(**{**vars(time), "sleep": killed}))
    with pytest.raises(SystemExit, match="KillWait"):
        act(not_yet=1000)
    assert state(tmp_path)[0] == "requeueing" and job_record.read_record("7").excluded.keys() == {"n1"}


@pytest.mark.parametrize("answer", ["JobState=COMPLETING Restarts=3", "JobState=CANCELLED Restarts=2"])
def test_a_job_that_is_requeued_or_cancelled_already_is_left_alone(act, tmp_path, answer):
    assert act(answer=answer) == "" and state(tmp_path)[0] == "driver"


def test_a_job_that_loses_its_head_again_without_progress_ends(act, tmp_path):
    calls = act(fruitless=2)
    assert calls == "scancel 7\n" and state(tmp_path)[0] == "ended"
    assert "no epoch or checkpoint came of it 2 times in a row" in state(tmp_path)[1]


def test_a_job_with_chain_has_a_successor_with_the_same_arguments_and_ends(act, tmp_path):
    calls = act("--chain").splitlines()
    (submitted,) = [call for call in calls if call.startswith("sbatch")]
    assert submitted.endswith("job.slurm --chain --space smoke") and "--dependency=afterany:7" in submitted
    assert calls[-1] == "scancel 7" and job_record.read_record("7").successor == "8"


def test_a_job_that_may_not_be_requeued_ends_and_says_so(act, tmp_path):
    words = "Requested operation is presently disabled"
    assert act(refused=words).splitlines()[-1] == "scancel 7"
    assert state(tmp_path)[0] == "ended" and words in state(tmp_path)[1]
    assert f"cannot start again: scontrol failed: {words}" in (tmp_path / "log").read_text()


def test_a_start_that_ends_without_a_word_counts_as_fruitless(tmp_path):
    job = StandInJob(tmp_path, "7", "--", "sleep", "600")
    job.wait_log("→ driver")
    steps = processes.descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    for pid in steps:  # as Slurm does
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    record = job_record.read_record("7", {"BIGBATCH_HOME": str(tmp_path / "home")})
    assert record is not None and (record.restarts, record.fruitless_restarts) == (0, 1)
