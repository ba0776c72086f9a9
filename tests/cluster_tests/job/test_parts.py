"""The parts of a job in an allocation that need no Slurm: ports, grants, options, decisions, folders."""

from __future__ import annotations

import ast
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bigbatch.cluster.host import private_folder, processes, slurm_commands
from bigbatch.cluster.host.allocation import granted_gpus, usable_memory_bytes
from bigbatch.cluster.host.atomic_files import write_json
from bigbatch.cluster.job import node_steps, options, policy, restart, successor, watch
from bigbatch.cluster.job.allocated_nodes import AllocatedNode, NoAllocation, node_cpus, read_allocation
from bigbatch.cluster.job.policy import Action, Cause, Situation, decide
from bigbatch.cluster.node import credentials, heartbeats, node_process, ports, ray_commands
from bigbatch.cluster.record import job_record
from helpers.paths import ROOT
from helpers.processes import clean_environment

MODULES = sorted((ROOT / "cluster").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_parses_with_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_importing_the_package_loads_neither_torch_nor_ray():
    paths = [p.relative_to(ROOT).with_suffix("") for p in MODULES if p.stem not in ("__init__", "__main__")]
    names = ", ".join(".".join(("bigbatch", *path.parts)) for path in paths)
    check = (
        f"import sys, {names}; print([m for m in ('torch', 'ray', 'optuna', 'numpy', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT / "src", env=clean_environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


# Ports


def test_blocks_of_ports_do_not_overlap_and_stay_below_the_ephemeral_range():
    head, worker = ports.ports_of("7", 0, head=True), ports.ports_of("7", 0, head=False)
    assert len(set(head.used() + worker.used())) == 8 + 5
    assert (worker.gcs, worker.dashboard, worker.client) == (0, 0, 0)
    neighbours = [set(ports.ports_of(str(job), 0, head=h).used()) for job in range(500) for h in (True, False)]
    assert sum(map(len, neighbours)) == len(set.union(*neighbours)), "500 jobs in a row meet nowhere"
    assert min(map(min, neighbours)) >= 20000 and max(map(max, neighbours)) < 32000
    visited = {ports.ports_of("123456789", attempt, head=True).gcs for attempt in range(ports.ATTEMPTS)}
    assert len(visited) == ports.ATTEMPTS


def test_a_taken_port_moves_the_job_to_another_block():
    job = next(str(n) for n in range(31, 500) if not ports.taken_ports(ports.ports_of(str(n), 0, head=True)))
    first = ports.ports_of(job, 0, head=True)
    with socket.socket() as neighbour:
        neighbour.bind(("127.0.0.1", first.object_manager))
        neighbour.listen()
        assert ports.taken_ports(first) == [first.object_manager]
        attempt, chosen = ports.free_ports(job, 0, head=True)
        assert attempt > 0 and not ports.taken_ports(chosen)
    assert ports.free_ports(job, 0, head=True) == (0, first)


# The allocation


def test_cpus_of_the_nodes_are_what_the_job_asked_for():
    whole = {"SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}
    assert node_cpus(whole, 3) == [64, 64, 32]
    asked = {**whole, "SLURM_CPUS_PER_TASK": "8", "SLURM_TASKS_PER_NODE": "1(x2),2"}
    assert node_cpus(asked, 3) == [8, 8, 16]
    assert node_cpus(whole, 2) == [], "counts that do not fit the node list are not used"


def test_gpus_are_those_of_the_step():
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": "0,1,3"}) == 3
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": "GPU-5ac1,MIG-77", "SLURM_GPUS_ON_NODE": "8"}) == 2
    assert granted_gpus({"ROCR_VISIBLE_DEVICES": "2"}) == 1
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "4"}) == 0
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert granted_gpus({"SLURM_GPUS_ON_NODE": "4"}) == 4
    assert granted_gpus({}) == 0


def names(text: str) -> list[str]:
    return text.split(",")


def test_the_grant_is_read_from_slurms_variables():
    env = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_JOB_CPUS_PER_NODE": "4,2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_END_TIME": "1700000000",
        "SLURM_RESTART_COUNT": "3",
    }
    allocation = read_allocation(env, names)
    assert (allocation.head.name, allocation.cpus, allocation.gpus, allocation.end_time) == ("a", 6, 4, 1.7e9)
    assert allocation.restart_count == 3
    with pytest.raises(NoAllocation, match="Write: sbatch"):
        read_allocation({}, names)


def test_a_heterogeneous_job_may_have_a_head_without_gpus():
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a", "SLURM_HET_SIZE": "2", "SLURM_JOB_END_TIME": "1"}
    env |= {"SLURM_JOB_NODELIST_HET_GROUP_0": "a", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "2"}
    env |= {"SLURM_JOB_NODELIST_HET_GROUP_1": "b,c", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "8(x2)"}
    allocation = read_allocation(env, names)
    assert [(n.name, n.cpus, n.het_group) for n in allocation.nodes] == [("a", 2, 0), ("b", 8, 1), ("c", 8, 1)]
    assert (allocation.cpus, allocation.gpus) == (None, 0), "only the nodes know"


def test_a_node_of_a_heterogeneous_job_is_told_of_its_own_memory():
    """As sbatch of Slurm 22.05 leaves them for ``--mem=200M : --mem-per-cpu=500M``: the plain ones are the head's."""
    sizes = {"SLURM_MEM_PER_NODE_HET_GROUP_0": "200", "SLURM_MEM_PER_CPU_HET_GROUP_1": "500"}
    env = {"SLURM_JOB_ID": "12", "SLURM_MEM_PER_NODE": "200", "SLURM_CPUS_PER_TASK": "1", **sizes}
    head, worker = (node_steps.step_environment(env, group) for group in (0, 1))
    assert usable_memory_bytes(head, Path("/nowhere")) == 200 * 2**20
    assert "SLURM_MEM_PER_NODE" not in worker and worker["SLURM_MEM_PER_CPU"] == "500"
    assert node_steps.step_environment(env)["SLURM_MEM_PER_NODE"] == "200", "all nodes are alike"


# Options


def test_the_jobs_options_come_first_and_the_rest_is_the_searchs():
    chosen = options.parse_job_options(
        ["--tls", "--max-restarts", "5", "--margin=60", "--space", "smoke", "--trials", "3"]
    )
    assert (chosen.tls, chosen.max_restarts, chosen.margin_s, chosen.chain) == (True, 5, 60, False)
    assert chosen.arguments == ("--space", "smoke", "--trials", "3")
    assert options.parse_job_options(["--keep-logs", "--", "python", "-c", "1"]).command == ("python", "-c", "1")


@pytest.mark.parametrize("wrong", [["--max-restarts"], ["--margin", "soon"], ["--"], ["--space", "x", "--", "ls"]])
def test_wrong_options_are_refused_in_one_line_with_the_fix(wrong):
    with pytest.raises(options.UsageError, match="Write") as refusal:
        options.parse_job_options(wrong)
    assert "\n" not in str(refusal.value)


def test_a_restart_resumes_the_study_of_the_first_start(tmp_path):
    chosen = options.parse_job_options(["--space", "smoke", "--output", "out"])
    folder = options.study_folder(chosen, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "bigbatch-5"
    first = options.driver_command(chosen, "bigbatch-5", "1.2.3.4:5", folder, again=False)
    assert first[2:] == ["--space", "smoke", "--output", "out", "--study", "bigbatch-5", "--address", "1.2.3.4:5"]
    folder.mkdir(parents=True)
    (folder / "study.json").touch()
    assert "--resume" in options.driver_command(chosen, "bigbatch-5", "a", folder, again=True)
    named = options.parse_job_options(["--study=mine", "--output", str(tmp_path / "out")])
    folder.rename(folder.with_name("mine"))
    folder = options.study_folder(named, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "mine"
    assert "--resume" not in options.driver_command(named, "bigbatch-5", "a", folder, again=False), "the user decides"
    assert "--resume" in options.driver_command(named, "bigbatch-5", "a", folder, again=True)


# Decisions


def situation(cause: Cause, **known) -> Situation:
    return Situation(**{"cause": cause, "exit_code": 143, "fruitless": 1, "max_restarts": 3, **known})


@pytest.mark.parametrize(
    ("case", "action", "code"),
    [
        (situation(Cause.DRIVER_ENDED, exit_code=0), Action.END, 0),
        (situation(Cause.DRIVER_ENDED, exit_code=7), Action.END, 7),
        (situation(Cause.DRIVER_ENDED, exit_code=75), Action.REQUEUE, 143),
        (situation(Cause.CANCELLED), Action.END, 143),
        (situation(Cause.CANCELLED, exit_code=None), Action.END, 143),
        (situation(Cause.TIME_LIMIT), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, chain=True), Action.CHAIN, 143),
        (situation(Cause.TIME_LIMIT, exit_code=None), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, exit_code=0), Action.END, 0),
        (situation(Cause.TIME_LIMIT, fruitless=3), Action.REQUEUE, 143),
        (situation(Cause.TIME_LIMIT, fruitless=4), Action.END, 1),
        (situation(Cause.TIME_LIMIT, max_restarts=0), Action.END, 1),
        (situation(Cause.PREEMPTED), Action.REQUEUE, 143),
        (situation(Cause.PREEMPTED, slurm_requeues=True, fruitless=9), Action.LEAVE_TO_SLURM, 143),
        (situation(Cause.HEAD_DIED, exit_code=None), Action.REQUEUE, 143),
        (situation(Cause.HEAD_DIED, exit_code=None, fruitless=2), Action.END, 1),
        (situation(Cause.START_FAILED, exit_code=None), Action.END, 1),
        (situation(Cause.TIME_LIMIT, too_short="no checkpoint"), Action.END, 1),
        (situation(Cause.PREEMPTED, too_short="no checkpoint"), Action.REQUEUE, 143),
        (situation(Cause.DRIVER_ENDED, exit_code=75, too_short="no checkpoint"), Action.END, 1),
        (situation(Cause.UNEXPLAINED), Action.END, 143),
        (situation(Cause.UNEXPLAINED, exit_code=0), Action.END, 0),
    ],
)
def test_what_a_job_does_at_its_end(case, action, code):
    decision = decide(case)
    assert (decision.action, decision.exit_code) == (action, code) and decision.reason


def test_a_search_that_can_start_nothing_more_is_not_said_to_be_near_the_time_limit():
    """It ends so with hours left, too, where the nodes that are left hold no trial."""
    assert "time limit" not in decide(situation(Cause.DRIVER_ENDED, exit_code=policy.TRY_AGAIN)).reason
    assert "time limit" in decide(situation(Cause.TIME_LIMIT)).reason


@pytest.mark.parametrize(
    ("state", "preempted", "cause", "slurm_requeues"),
    [
        ("CANCELLED", False, Cause.CANCELLED, False),
        ("CANCELLED,COMPLETING", False, Cause.CANCELLED, False),
        ("RUNNING", True, Cause.PREEMPTED, False),
        ("RUNNING", False, Cause.PREEMPTED, False),
        ("PENDING,COMPLETING", True, Cause.PREEMPTED, True),
        ("REQUEUED,COMPLETING", False, Cause.PREEMPTED, True),
        ("PREEMPTED,COMPLETING", True, Cause.PREEMPTED, False),
        ("TIMEOUT", False, Cause.TIME_LIMIT, False),
        ("COMPLETING", False, Cause.CANCELLED, False),
    ],
)
def test_why_slurm_sends_sigterm(state, preempted, cause, slurm_requeues):
    assert policy.cause_of_signal(state, preempted) == (cause, slurm_requeues)


def test_a_successor_is_given_what_the_job_was_given():
    fields = {"JobName": "bb", "Partition": "gpu", "Account": "(null)", "TimeLimit": "02:00:00", "NumNodes": "3"}
    fields |= {"CPUs/Task": "8", "TresPerNode": "gres:gpu:a100:4", "MinMemoryNode": "64G", "QOS": "normal"}
    assert successor.sbatch_options(fields) == [
        *("--job-name=bb", "--partition=gpu", "--qos=normal", "--time=02:00:00", "--cpus-per-task=8", "--mem=64G"),
        *("--gres=gpu:a100:4", "--nodes=3"),
    ]


def test_a_successor_is_given_gpus_however_they_were_asked_for():
    job = {"NumNodes": "2", "NumTasks": "2", "CPUs/Task": "4", "MinMemoryNode": "0"}

    def given(**fields: str) -> set[str]:
        return set(successor.sbatch_options({**job, **fields})) - {"--nodes=2"}

    rest = {"--cpus-per-task=4", "--mem=0"}
    assert given(TresPerJob="gres/gpu:8") == given(TresPerJob="gres:gpu:8") == {*rest, "--gpus=8"}
    assert given(TresPerJob="gres/gpu:a100:4,gres/gpu:v100:2") == {*rest, "--gpus=a100:4,v100:2"}
    assert given(TresPerTask="gres:gpu:2") == {*rest, "--gpus-per-task=2", "--ntasks=2"}
    assert given(TresPerTask="cpu=4,gres/gpu:a100=2") == {*rest, "--gpus-per-task=a100:2", "--ntasks=2"}
    assert given(TresPerTask="cpu=4") == rest
    assert given(TresPerNode="gres:gpu:4", CpusPerTres="gres:gpu:8", MemPerTres="gpu:4096") == {
        *("--gres=gpu:4", "--cpus-per-gpu=8", "--mem-per-gpu=4096"),
    }
    assert given(OverSubscribe="NO") == {*rest, "--exclusive"} and given(OverSubscribe="OK") == rest
    assert given(OverSubscribe="USER") == {*rest, "--exclusive=user"}


def test_a_successor_inherits_no_device_and_no_allocation():
    env = {"CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "7", "RAY_ADDRESS": "a"}
    kept = {"SLURM_CONF": "/etc/s.conf", "HOME": "/home/me", "BIGBATCH_HOME": "/b"}
    assert successor.environment_for_successor({**env, **kept}) == kept


def test_the_mark_of_a_successor_stands_beside_the_users_comment():
    assert successor.comment_with_mark("(null)", "7") == successor.comment_with_mark(None, "7") == "bigbatch-after-7"
    assert successor.comment_with_mark("project x bigbatch-after-7", "8") == "project x bigbatch-after-8"


def test_the_successor_of_a_heterogeneous_job_has_its_components(tmp_path, monkeypatch):
    """Answers as Slurm 22.05 gives them: a line a component; the script's own lines are for the first alone."""
    first = "JobId=8 HetJobId=8 HetJobOffset=0 JobName=bb NumNodes=1 NumTasks=1 CPUs/Task=1 Comment=mine"
    second = "JobId=9 HetJobId=8 HetJobOffset=1 JobName=bb NumNodes=2 NumTasks=4 CPUs/Task=2 TresPerNode=gres:gpu:1"
    ends = "ExcNodeList=n9 Command=/a/b.slurm x"
    answer = f"{first} {ends}\n{second} {ends}\n"
    names = 'case "$*" in *hostnames*) echo n9; exit;; esac; '
    stand_in(
        tmp_path, monkeypatch, scontrol=f"{names}printf '{answer}'", sbatch=f'echo "$*" >> {tmp_path}/got; echo 10'
    )
    assert restart.submit_successor("8", ["n3"], "s") == "10"
    before, _, after = (tmp_path / "got").read_text().partition(" : ")
    assert before == (
        "--parsable --export=ALL --dependency=afterany:8 --job-name=bb --cpus-per-task=1 --nodes=1 "
        "--comment=mine bigbatch-after-8 --exclude=n9"
    ), "n3 may be given again: which component it was of is not asked"
    assert after.startswith("--job-name=bb --cpus-per-task=2 --gres=gpu:1 --nodes=2 --ntasks=4 --exclude=n9 /a")
    assert slurm_commands.job_fields("8")["NumNodes"] == "1"
    stand_in(tmp_path, monkeypatch, squeue="printf '8+0|x\n10+0|mine bigbatch-after-8\n10+1|\n'")
    assert successor.find_successor("8") == "10"


# A stand-in for Slurm's commands, where only their words or their slowness matter


def stand_in(folder: Path, monkeypatch, **commands: str) -> None:
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_step_that_slurm_could_not_launch_is_started_once_more(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, srun=f"echo x >> {tmp_path}/calls; exit 233", scancel="exit 0")
    steps = node_steps.NodeSteps("7", "7.0", tmp_path, tls=False)
    steps.prepare()
    steps.start(AllocatedNode("n1", 1), None)
    assert processes.wait_until(lambda: bool(steps.look()), 60)
    assert steps.gone == {"n1": "lost: its step ended without a report (exit code 233)"}
    assert (tmp_path / "calls").read_text() == "x\n" * 2
    stand_in(tmp_path, monkeypatch, srun=f"echo x >> {tmp_path}/calls; exec sleep 600")
    ends = {"n2": lambda: steps.kill("n2"), "n3": lambda: steps.stop(keep_logs=False, timeout_s=0)}
    for calls, (name, end) in enumerate(ends.items(), start=3):
        steps.start(AllocatedNode(name, 1), None)
        assert processes.wait_until(lambda n=calls: (tmp_path / "calls").read_text().count("x") == n, 60)
        end()  # given up, or told to end: not started again
        assert processes.wait_until(lambda n=name: n in steps.gone or n in steps.look(), 60)
    assert (tmp_path / "calls").read_text() == "x\n" * 4


def test_a_controller_that_does_not_answer_has_refused_nothing(tmp_path, monkeypatch):
    lost = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, scontrol=lost, squeue="exec sleep 5")
    with pytest.raises(slurm_commands.SlurmSilent, match="Unable to contact"):
        slurm_commands.job_fields("7")
    with pytest.raises(slurm_commands.SlurmSilent, match="did not answer within 0.2 s"):
        slurm_commands.run("squeue", timeout_s=0.2)
    stand_in(tmp_path, monkeypatch, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(slurm_commands.SlurmError) as refusal:
        slurm_commands.job_fields("7")
    assert not isinstance(refusal.value, slurm_commands.SlurmSilent)


@pytest.mark.parametrize(
    ("answer", "cause", "killed_soon"),
    [
        ("echo JobState=RUNNING PreemptTime=2026-11-21T10:00:00", Cause.PREEMPTED, False),
        ("echo JobState=CANCELLED PreemptTime=None", Cause.CANCELLED, True),
        ("echo 'Invalid job id specified' >&2; exit 1", Cause.CANCELLED, True),
    ],
)
def test_a_signal_is_explained_whenever_slurm_answers(answer, cause, killed_soon, tmp_path, monkeypatch):
    awake = tmp_path / "awake"
    down = "echo 'Unable to contact slurm controller' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, scontrol=f"[ -e {awake} ] || {{ {down}; }}\n{answer}")
    monkeypatch.setattr(watch, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(watch, "ASK_AGAIN_S", 0.05)
    said: list[str] = []
    job = job_record.JobRecord("7", "driver")
    look = watch.JobWatch(job, None, "n1", 0.0, [signal.SIGTERM], [], said.append, lambda: None)
    assert look.interruption() is Cause.UNEXPLAINED and "saving in any case" in said[-1]
    assert not look.explain(0.2) and look.cause is Cause.UNEXPLAINED
    awake.touch()
    assert look.explain(60) and (look.cause, look.killed_soon) == (cause, killed_soon)
    assert not look.explain(), "nothing is left to explain"


OTHER_ERRORS = (
    *("Protocol authentication error", "Could not establish a configuration source", "Message receive failure"),
    *("Slurm backup controller in standby mode", "Unspecified error"),
)


def test_only_an_unknown_job_is_taken_for_a_cancelled_one(tmp_path, monkeypatch):
    """Whatever else scontrol fails with says nothing of the job: it is asked on."""
    (tmp_path / "left").write_text("".join(f"scontrol: error: {words}\n" for words in OTHER_ERRORS))
    fail = f"[ -s {tmp_path}/left ] && {{ head -n1 {tmp_path}/left >&2; sed -i 1d {tmp_path}/left; exit 1; }}"
    stand_in(tmp_path, monkeypatch, scontrol=f"{fail}\necho JobState=RUNNING PreemptTime=2026-11-21T10:00:00")
    monkeypatch.setattr(watch, "ASK_AGAIN_S", 0.01)
    fields = watch.Question("7").answer(60)
    assert fields is not None and fields["JobState"] == "RUNNING"
    assert (tmp_path / "left").read_text() == "", "every error was met"


def sinfo(*nodes: tuple[str, str, str]) -> str:
    """Prints rows as `sinfo --Format=NodeHost:256,Gres:1024,Features:4096` does."""
    return "\n".join(f"printf '%-256s%-1024s%-4096s\\n' {n} '{gres}' '{features}'" for n, gres, features in nodes)


@pytest.mark.parametrize(
    ("fields", "bad", "may"),
    [
        ({}, ["cpu1"], True),
        ({"NumNodes": "4"}, ["cpu1"], False),
        ({"TresPerNode": "gres:gpu:2"}, ["big"], False),
        ({"TresPerNode": "gres/gpu:2"}, ["big"], False),
        ({"TresPerNode": "gres:gpu:1"}, ["big"], True),
        ({"TresPerNode": "gres/gpu:a100:1"}, ["big"], False),
        ({"TresPerNode": "gres/gpu:a100:1", "NumNodes": "1"}, ["big"], False),
        ({"TresPerJob": "gres:gpu:4", "NumNodes": "1"}, ["small"], True),
        ({"TresPerJob": "gres:gpu:4", "NumNodes": "1"}, ["big"], False),
        ({"Features": "fast", "NumNodes": "1"}, ["small"], True),
        ({"Features": "fast&new", "NumNodes": "1"}, ["big"], False),
        ({"ReqNodeList": "big"}, ["cpu1"], False),
        ({"NumNodes": "3"}, ["cpu1"], True),
        ({"NumNodes": "3", "ExcNodeList": "cpu2"}, ["cpu1"], False),
        ({"TresPerTask": "cpu=4"}, ["cpu1"], True),
        ({"TresPerTask": "cpu=4,gres/gpu:a100=1"}, ["small"], True),
        ({"TresPerTask": "cpu=4,gres/gpu:a100=1"}, ["big"], False),
        ({"TresPerTask": "cpu=4", "TresPerJob": "gres/gpu:4"}, ["big"], False),
    ],
)
def test_a_node_is_avoided_only_if_enough_others_have_what_the_job_wants(fields, bad, may, tmp_path, monkeypatch):
    """Two nodes with GPUs, one of them with two of another type, and two without any."""
    rows = sinfo(
        ("big", "gpu:a100:4(S:0-1)", "fast,new"),
        ("small", "gpu:v100:1(S:0),shard:4", "fast"),
        ("cpu1", "(null)", "(null)"),
        ("cpu2", "(null)", "fast"),
    )
    known = {"Partition": "main", "NumNodes": "1", **fields}
    answer = "echo 'JobId=7 " + " ".join(f"{name}={value}" for name, value in known.items()) + "'"
    answer = f'case "$*" in *hostnames*) echo "${{3}}";; *) {answer};; esac'
    stand_in(tmp_path, monkeypatch, scontrol=answer, sinfo=rows)
    assert restart.may_exclude("7", bad) is may


# Folders and processes


def test_a_nodes_folder_is_private_short_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # too long
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    with private_folder.temporary_folder("1234567") as folder:
        assert folder.parent == Path("/tmp") and folder.stat().st_mode & 0o777 == 0o700
        assert len(f"{folder}/r/session_2026-11-21_10-00-00_000000_1234567/sockets/plasma_store") <= 107
        assert folder not in private_folder.remove_stale()
        (folder / "r").mkdir()
        (folder / "r" / "file").touch()
    assert not folder.exists()


def test_what_a_killed_job_left_is_removed_with_its_processes(monkeypatch):
    # Not in /tmp itself, which a search that starts beside this test sweeps, too.
    base = tempfile.TemporaryDirectory(dir="/tmp", prefix="t")
    monkeypatch.setenv("BIGBATCH_NODE_TMP", base.name)
    hold = "import os, signal; from bigbatch.cluster.host.private_folder import temporary_folder\n"
    hold += "with temporary_folder('77') as f: print(f, flush=True); signal.pause()"
    node_process = subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT / "src", stdout=subprocess.PIPE, text=True)
    folder = Path(node_process.stdout.readline().strip())
    orphan = subprocess.Popen(["sleep", "300"], executable="/bin/sleep", start_new_session=True)
    daemon = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", f"ray start {folder}/r/socket"])
    assert processes.wait_until(lambda: b"socket" in Path(f"/proc/{daemon.pid}/cmdline").read_bytes(), 60)
    node_process.kill()
    node_process.wait()
    assert folder.exists() and folder.parent == Path(base.name)
    assert folder in private_folder.remove_stale() and not folder.exists()
    assert daemon.wait(30) in (-signal.SIGTERM, -signal.SIGKILL) and orphan.poll() is None
    orphan.kill()
    orphan.wait()
    base.cleanup()


def test_a_removal_that_is_cut_short_is_taken_up_by_the_next_sweep(tmp_path, monkeypatch):
    folder, owner = private_folder.make_private_folder("bbn-7-", ["/tmp"])
    left = []
    rmtree = private_folder.shutil.rmtree

    def look_first(path, **options):
        if path == folder:
            left.append(os.listdir(folder))
        rmtree(path, **options)

    for name in ("of-the-driver", "r"):
        (folder / name).mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to(tmp_path)
    monkeypatch.setattr(private_folder.shutil, "rmtree", look_first)
    private_folder.remove_folder(folder)
    owner.close()
    assert left == [["owner"]] and not folder.exists() and tmp_path.exists()


def test_a_users_folder_with_a_name_like_ours_stays(tmp_path):
    names = {"bbn-7-notes": "thesis.txt", "bbn-2026-cafe": "thesis.txt", "bbn-7-beef": "r", "bbn-8-0000": None}
    for name, content in names.items():
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / content).touch()
        os.utime(tmp_path / name, (time.time() - 300,) * 2)
    removed = private_folder.remove_stale({}, candidates=[str(tmp_path)])
    assert {path.name for path in removed} == {"bbn-7-beef", "bbn-8-0000"}
    assert {path.name for path in tmp_path.iterdir()} == {"bbn-7-notes", "bbn-2026-cafe"}


def test_only_own_descendants_are_ended_also_those_that_left_their_group():
    start = "import subprocess, sys; subprocess.Popen(['sleep', '301'], start_new_session=True); sys.exit()"
    main = f"""
import subprocess, sys
from bigbatch.cluster.host import processes
processes.adopt_orphans()
subprocess.run([sys.executable, "-c", {start!r}])
assert len(processes.descendants({os.getpid()})) >= 2
below = processes.descendants(__import__("os").getpid())
assert len(below) == 1, below
stubborn = subprocess.Popen(["bash", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=subprocess.PIPE)
stubborn.stdout.readline()  # from now on it ignores the signal
print(processes.end_descendants(grace_s=0.5) == [stubborn.pid], processes.descendants(__import__("os").getpid()))
"""
    bystander = subprocess.Popen(["sleep", "302"])
    done = subprocess.run([sys.executable, "-c", main], cwd=ROOT / "src", capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("[]"), done.stderr
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


# Credentials


def test_a_token_is_fresh_and_private(tmp_path):
    first = credentials.make_token(tmp_path)
    text = first.read_text()
    assert len(text) == 64 and first.stat().st_mode & 0o777 == 0o600
    assert credentials.make_token(tmp_path).read_text() != text
    assert text not in str(credentials.credential_variables(first, None))
    credentials.remove_credentials(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_certificates_of_one_job_trust_each_other(tmp_path):
    authority = credentials.make_authority(tmp_path)
    node_process = credentials.make_certificate(authority, tmp_path / "n", ["n1", "localhost"], ["10.0.0.1"])
    verify = [
        "openssl",
        "verify",
        "-CAfile",
        str(node_process / "ca.crt"),
        "-verify_ip",
        "10.0.0.1",
        str(node_process / "node.crt"),
    ]
    assert subprocess.run(verify, capture_output=True).returncode == 0
    assert all(p.stat().st_mode & 0o077 == 0 for p in tmp_path.rglob("*.key"))


def test_ray_is_started_with_every_port_and_resource_given(tmp_path):
    share = ray_commands.NodeResources(4, 2, 10**9, 10**8)
    head = ray_commands.ray_start_command(
        "10.0.0.1", "10.0.0.1:1", ports.ports_of("1", 0, head=True), share, tmp_path, {}
    )
    worker = ray_commands.ray_start_command(
        "10.0.0.2", "10.0.0.1:1", ports.ports_of("1", 0, head=False), share, tmp_path, {}
    )
    assert "--head" in head and "--dashboard-host=127.0.0.1" in head and "--address=10.0.0.1:1" in worker
    for option in ("--num-cpus=4", "--num-gpus=2", "--memory=1000000000", "--object-store-memory=100000000"):
        assert option in head and option in worker


def test_rays_temporary_folder_is_the_jobs_and_the_users_own_is_handed_on(tmp_path, monkeypatch):
    """A stand-in for the interpreter writes down the variables that Ray's processes inherit."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\nenv > "$SEEN"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("BIGBATCH_NODE_PYTHON", str(stand_in))
    monkeypatch.setattr(credentials, "credential_variables", lambda *_: {})
    for own in ("/local/user", None):
        monkeypatch.setenv("SEEN", str(tmp_path / f"seen-{own is None}"))
        monkeypatch.setenv("TMPDIR", own) if own else monkeypatch.delenv("TMPDIR", raising=False)
        step = node_process.NodeProcess.__new__(node_process.NodeProcess)
        step._gcs, step._ip, step._record = None, "10.0.0.1", tmp_path
        step._share, step._job_id, step._name = ray_commands.NodeResources(1, 0, 10**9, 10**8), "1", "n1"
        assert step._start_ray(tmp_path, ports.ports_of("1", 0, head=True), None).wait() == 0
        seen = dict(line.split("=", 1) for line in Path(os.environ["SEEN"]).read_text().splitlines() if "=" in line)
        assert (seen["TMPDIR"], seen["BIGBATCH_USER_TMPDIR"]) == (str(tmp_path), own or "")


# Mends


def test_a_task_of_an_array_is_refused():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_ARRAY_TASK_ID": "2"}
    with pytest.raises(NoAllocation, match="array"):
        read_allocation(env, lambda nodes: ["n1"], lambda job: {})


def test_a_folder_of_jobs_that_others_can_write_is_refused(tmp_path):
    env = {"BIGBATCH_HOME": str(tmp_path / "home")}
    job = job_record.JobRecord("7", "head")
    job.write(env)
    (tmp_path / "home" / "jobs").chmod(0o775)
    with pytest.raises(PermissionError, match="nobody else"):
        job.write(env)
    (tmp_path / "home" / "jobs").chmod(0o700)
    job.write(env)
    (tmp_path / "home").chmod(0o770)
    with pytest.raises(PermissionError, match="nobody else: chmod go-w .*/home"):
        job.write(env)


def test_the_folder_of_jobs_may_be_a_link_to_an_own_one(tmp_path):
    (tmp_path / "roomy").mkdir(mode=0o700)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "jobs").symlink_to(tmp_path / "roomy")
    env = {"BIGBATCH_HOME": str(tmp_path / "home")}
    job_record.JobRecord("7", "head").write(env)
    assert job_record.read_record("7", env).state == "head" and (tmp_path / "roomy" / "7").is_dir()
    (tmp_path / "roomy").chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w .*/roomy"):
        job_record.JobRecord("7", "head").write(env)


def test_a_search_in_a_database_goes_on_with_its_storage(tmp_path):
    (tmp_path / "study.json").touch()
    assert restart.resume_options(tmp_path).endswith("--resume, and its --storage if it had one")
    (tmp_path / "optuna.journal").touch()
    assert restart.resume_options(tmp_path).endswith("--resume")


def test_a_folder_of_jobs_is_made_private_whatever_the_umask_is(tmp_path):
    before = os.umask(0o002)
    try:
        job_record.JobRecord("7", "head").write({"BIGBATCH_HOME": str(tmp_path / "a" / "home")})
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "home" / "jobs" / "7").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "home").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_jobs_of_another_user_is_refused_with_the_one_to_take(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: home.stat().st_uid + 1)
    owner = pwd.getpwuid(home.stat().st_uid).pw_name
    with pytest.raises(PermissionError, match=f"{home} belongs to {owner}; .* own folder, e.g. {home}/") as refusal:
        job_record.make_home({"BIGBATCH_HOME": str(home)})
    assert "\n" not in str(refusal.value)


def test_a_stalled_file_system_is_no_hung_node(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now[0])
    beats = {"n1": 1, "n2": 1, "n3": 0}
    watch = heartbeats.Heartbeats()
    assert watch.hung(beats) == []
    now[0] += 300.0
    assert watch.hung(beats) == [], "all stand still"
    beats["n1"] = 2
    assert watch.hung(beats) == ["n2"], "one goes on, so the other hangs; the third has not begun"
    beats["n2"] = 2
    assert watch.hung(beats) == [], "it only was slow"


def test_hung_nodes_are_the_own_ones_and_those_that_are_lent(tmp_path, monkeypatch):
    """Job 7 with its nodes n1 and n-2, and n-2 lent by job 9: the reports as ``bigbatch.cluster.node`` writes them."""
    now = [100.0]
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now[0])
    (tmp_path / "nodes").mkdir()

    def report(stem: str, job: str, run_id: str, beat: int, state: str = "ready") -> None:
        write_json(tmp_path / "nodes" / f"{stem}.json", {"job": job, "run_id": run_id, "beat": beat, "state": state})

    main, lender = (node_steps.NodeSteps(job, f"{job}.0", tmp_path, False) for job in "79")
    lender.follow("7.0")
    main._steps, lender._steps = dict.fromkeys(["n1", "n-2"]), dict.fromkeys(["n-2"])
    for beat in (1, 2):
        report("n1", "7", "7.0", beat)
        report("n-2", "7", "7.0", 1)
        report("n-2-9", "9", "9.0", 1)
        report("n4-8", "8", "8.0", 1, "ended")
        assert beat == 2 or (main.hung(), lender.hung()[0]) == (([], []), [])
        now[0] += 300.0 if beat == 1 else 0.0
    assert main.hung() == (["n-2"], ["n-2-9"])
    assert lender.hung()[0] == ["n-2"], "its own: the job's report is another"
    report("n-2-9", "9", "9.1", 1)
    assert lender.hung()[0] == [], "of another stay"


# Containers


def test_in_a_container_ray_and_the_search_run_inside_and_slurms_commands_outside(monkeypatch, tmp_path):
    inside = str(ROOT / "cluster" / "in_container.sh")
    monkeypatch.setenv("BIGBATCH_NODE_PYTHON", inside)
    command = options.driver_command(
        options.parse_job_options(["--space", "smoke"]), "s", "10.0.0.1:1", tmp_path, again=False
    )
    assert command[0] == inside and ray_commands.ray_python() == inside
    own = options.driver_command(options.parse_job_options(["--", "make", "-j"]), "s", "10.0.0.1:1", None, again=False)
    assert own == [inside, "--command", "make", "-j"]
    steps = (ROOT / "cluster" / "job" / "node_steps.py").read_text()
    assert "sys.executable" in steps and "ray_python" not in steps, "a node's wrapper stays outside"
    monkeypatch.delenv("BIGBATCH_NODE_PYTHON")
    assert ray_commands.ray_python() == sys.executable


def test_the_container_is_called_with_what_the_job_needs_bound(tmp_path):
    """A stand-in for apptainer writes down how it is called and runs what comes after the image."""
    stand_in = tmp_path / "apptainer"
    stand_in.write_text(
        '#!/bin/sh\necho "$@" > "$CALLED"\nwhile [ "$1" != /images/bb.sif ]; do shift; done\nshift\nexec "$@"\n'
    )
    stand_in.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLED": str(tmp_path / "called"), "BIGBATCH_ROOT": "/code",
        "BIGBATCH_HOME": "/records", "BIGBATCH_CONTAINER": "/images/bb.sif",
        "BIGBATCH_CONTAINER_PYTHON": sys.executable, "BIGBATCH_USER_TMPDIR": str(tmp_path / "local"),
    }  # fmt: skip
    (tmp_path / "local").mkdir()
    script = [str(ROOT / "cluster" / "in_container.sh"), "-c", "import sys; print(sys.argv[1:])", "a b", "c"]
    done = subprocess.run(script, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['a b', 'c']\n", done.stderr
    words = [script[0], "--command", "sh", "-c", 'printf "%s|" "$@"', "sh", "a b", "--command", ""]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a b|--command||", done.stderr
    called = (tmp_path / "called").read_text()
    assert all(f"--bind {path}" in called for path in ("/code", "/records", "/tmp", tmp_path, tmp_path / "local"))
    (tmp_path / "local").rmdir()  # what is not on this node cannot be bound
    subprocess.run(script, env=env, cwd=tmp_path, check=True, capture_output=True)
    assert "/local" not in (tmp_path / "called").read_text()
    missing = subprocess.run(script, env={**env, "PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 127 and "apptainer" in missing.stderr
