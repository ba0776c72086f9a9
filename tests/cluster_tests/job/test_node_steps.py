"""The steps in which nodes run, and which of them hang."""

import functools
import shutil
import sys

import pytest

from bigbatch.base import processes
from bigbatch.base.atomic_files import write_json
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import checks, node_steps
from bigbatch.cluster.job.allocated_nodes import AllocatedNode, Allocation
from bigbatch.cluster.node import node_process, node_status
from helpers.paths import ROOT
from helpers.stand_in_slurm import stand_in


def test_a_step_that_slurm_could_not_launch_is_started_once_more(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, srun=f"echo x >> {tmp_path}/calls; exit 233", scancel="exit 0")
    steps = node_steps.NodeSteps("7", "7.0", tmp_path)
    steps.prepare()
    steps.start(AllocatedNode("n1", 1))
    assert processes.wait_until(lambda: bool(steps.look()), 60)
    assert steps.gone == {"n1": "lost: its step ended without a report (exit code 233)"}
    assert (tmp_path / "calls").read_text() == "x\n" * 2
    stand_in(tmp_path, monkeypatch, srun=f"echo x >> {tmp_path}/calls; exec sleep 600")

    def called(times: int) -> bool:
        return (tmp_path / "calls").read_text().count("x") == times

    def is_gone(node: str) -> bool:
        return node in steps.gone or node in steps.look()

    ends = {"n2": lambda: steps.kill("n2"), "n3": lambda: steps.stop(keep_logs=False, timeout_s=0)}
    for calls, (name, end) in enumerate(ends.items(), start=3):
        steps.start(AllocatedNode(name, 1))
        assert processes.wait_until(functools.partial(called, calls), 60)
        end()  # given up, or told to end: not started again
        assert processes.wait_until(functools.partial(is_gone, name), 60)
    assert (tmp_path / "calls").read_text() == "x\n" * 4


def test_a_step_gets_all_of_its_nodes_gpus_however_the_job_binds_its_tasks(tmp_path, monkeypatch):
    """``--gpu-bind=single:1`` binds each task to one GPU, and a step has one task."""
    stand_in(tmp_path, monkeypatch, srun=f"env > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/env; exec sleep 600")
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_GPU_BIND"):
        monkeypatch.setenv(name, "gres/gpu:single:1")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    steps = node_steps.NodeSteps("7", "7.0", tmp_path)
    steps.prepare()
    steps.start(AllocatedNode("n1", 1))
    assert processes.wait_until((tmp_path / "env").exists, 60)
    steps.kill("n1")
    given = (tmp_path / "env").read_text()
    assert "SLURM_GPUS_ON_NODE=4" in given and "single" not in given


def test_orders_that_could_not_be_written_are_written_as_soon_as_they_can_be(tmp_path):
    """Else the nodes would wait for the head's address until the start timeout."""
    steps = node_steps.NodeSteps("7", "7.0", tmp_path)
    steps.prepare()
    control = tmp_path / node_process.CONTROL_FILE
    control.unlink()
    (control / "x").mkdir(parents=True)  # in place of a full quota, which stops no root
    steps.join("10.0.0.1:20000")
    steps.look()
    shutil.rmtree(control)
    steps.look()
    assert node_status.NodeOrders.read(control) == node_status.NodeOrders("7.0", address="10.0.0.1:20000")


def test_nodes_that_do_not_see_what_the_first_one_sees_are_named_and_not_started_again(tmp_path, monkeypatch):
    """What ``bigbatch.cluster.node`` ends with there, whether or not it can report it."""
    there, missing = tmp_path / "there", tmp_path / "runs" / "s" / ".lease"
    there.mkdir()
    impatient = "from bigbatch.cluster.node import node_process as n; n.SEE_S = 0.1; import sys; sys.exit(n.main())"
    skip = 'for word; do shift; [ "$word" = bigbatch.cluster.node ] && break; done'
    stand_in(tmp_path, monkeypatch, srun=f'{skip}\nexec "{sys.executable}" -c "{impatient}" "$@"', scancel="exit 0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    steps = node_steps.NodeSteps("7", "7.0", tmp_path, sees=[there, missing])
    steps.prepare()
    steps.start(AllocatedNode("n2", 1))
    assert processes.wait_until(lambda: bool(steps.look()), 60)
    assert steps.blind == steps.gone == {"n2": f"n2 does not see {missing}"}
    stand_in(tmp_path, monkeypatch, srun=f"exit {node_process.BLIND}")
    steps.start(AllocatedNode("n3", 1))
    assert processes.wait_until(lambda: bool(steps.look()), 60)
    assert steps.blind["n3"] == f"n3 does not see {tmp_path}", "not even the place of its report"
    nodes = tuple(AllocatedNode(name, 1) for name in ("n1", "n2", "n3"))
    checks.check_nodes_see({"n2": ""}, Allocation("7", nodes, 0, None, 0))  # its own fault: the others go on
    with pytest.raises(InputError, match="must be on a file system that all nodes share; n2 does not see"):
        checks.check_nodes_see(steps.blind, Allocation("7", nodes, 0, None, 0))


def test_steps_that_slurm_has_signalled_are_told_to_end_by_the_jobs_orders_alone(tmp_path, monkeypatch):
    """For a job that is back in the queue scancel asks again and again: "Job can not be altered now"."""
    told = f"until grep -q '\"stop\": *true' {tmp_path}/control.json; do sleep 0.1; done"
    stand_in(tmp_path, monkeypatch, srun=told, scancel=f"touch {tmp_path}/called; exec sleep 600")
    for signalled in (True, False):
        steps = node_steps.NodeSteps("7", "7.0", tmp_path)
        steps.prepare()
        write_json(tmp_path / "nodes" / "n1.json", {"run_id": "7.0", "state": "ended", "beat": 1})
        steps.start(AllocatedNode("n1", 1))
        assert steps.stop(keep_logs=False, timeout_s=60 if signalled else 4, signalled=signalled) == []
        assert (tmp_path / "called").exists() is not signalled


def test_a_node_hangs_whose_heartbeat_has_stopped_while_another_goes_on(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    (tmp_path / "nodes").mkdir()

    def report(name: str, run_id: str, beat: int) -> None:
        write_json(tmp_path / "nodes" / f"{name}.json", {"run_id": run_id, "beat": beat, "state": "ready"})

    steps = node_steps.NodeSteps("7", "7.0", tmp_path)
    steps._steps = dict.fromkeys(["n1", "n2", "n3"])
    for beat in range(1, 8):
        report("n1", "7.0", beat)
        report("n2", "7.0", 1)
        report("n3", "6.0", 1)  # of an earlier start: it has not reported yet
        assert beat == 7 or steps.hung() == []
        now[0] += 10.0
    assert steps.hung() == ["n2"]
