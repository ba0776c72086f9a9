"""Ranks from Slurm's variables, with the values that a real srun sets, and two processes that meet by them."""

import json
import signal
from pathlib import Path

import pytest

from bigbatch.cluster.host.slurm_commands import first_host
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.distributed import Meeting
from bigbatch.train_loop.host.ranks import Launch, find_launch, rendezvous_port
from helpers.ranks import STEP, start_ranks, without_gloo, write_config


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1"),
        ("jwb[0021-0024,0101]", "jwb0021"),
        ("r3i2n[7,9-11],r4i0n0", "r3i2n7"),
        ("gpu-a,gpu-b", "gpu-a"),
        ("c[12-14].hpc", "c12.hpc"),
        ("r[1-2]n[03-04]", "r1n03"),
        ("r[1,3]c[2-4]n[007,9-12]-ib,x[1-2]", "r1c2n007-ib"),
    ],
)
def test_the_master_is_the_first_node_of_the_list(node_list, host):
    assert first_host(node_list) == host


def test_a_step_of_several_tasks_is_a_launch_and_one_task_or_a_batch_script_is_none():
    launch = find_launch(STEP)
    assert launch == Launch("srun", 4, 0, 6, 2, ("n1", rendezvous_port(1234567, 2)))
    assert find_launch({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None  # srun --pty bash, a Ray job's driver
    assert find_launch({k: v for k, v in STEP.items() if "STEP" not in k} | {"SLURM_NTASKS": "6"}) is None
    assert find_launch({}) is None


def test_uneven_tasks_a_suffix_and_a_given_master_are_respected():
    uneven = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,1(x2)"}
    assert find_launch(uneven).on_node == 1 and find_launch({**uneven, "SLURM_NODEID": "0"}).on_node == 4
    assert find_launch({**STEP, "BIGBATCH_HOST_SUFFIX": "i"}).master[0] == "n1i"
    given = find_launch({**STEP, "MASTER_ADDR": "elsewhere", "MASTER_PORT": "77"})
    assert given.master == ("elsewhere", 77)


def test_torchruns_own_variables_come_first():
    env = {**STEP, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    launch = find_launch(env)
    assert (launch.by, launch.rank, launch.world_size, launch.master) == ("torchrun", 1, 2, None)


@pytest.mark.parametrize(("rank", "met"), [("3", "RANK=3 of WORLD_SIZE=2"), ("-1", "RANK=-1 of"), ("x", "'x'")])
def test_a_rank_that_no_launcher_gives_is_refused(rank, met):
    with pytest.raises(ConfigError, match=f"must be complete; got ValueError: .*{met}.* Unset RANK"):
        find_launch({"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0"})


def test_variables_that_a_shell_has_kept_do_not_end_in_a_traceback(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="got .*MASTER_ADDR.* Unset RANK"):
        Meeting()


def test_ports_of_steps_and_of_jobs_that_follow_each_other_differ():
    ports = {rendezvous_port(job, step) for job in range(500000, 500050) for step in range(3)}
    assert len(ports) == 150 and all(15000 <= port < 20000 for port in ports)


@pytest.fixture
def best(tmp_path: Path, tiny_images: Path) -> Path:
    return write_config(tmp_path, tiny_images, epochs=30)


@pytest.mark.slow
@pytest.mark.without_ray
def test_two_tasks_train_together_stop_on_sigterm_with_a_checkpoint_and_go_on(best):
    ranks = start_ranks(best)
    for line in ranks[0].stdout:
        if "epoch  3/30" in line:
            break
    for rank in ranks:  # as scancel does to a step's tasks
        rank.send_signal(signal.SIGTERM)
    ends = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [143, 143], ends
    assert "To resume: repeat the command" in ends[0][1] and ends[1][1] == ""
    assert without_gloo(ends[1][0]) == ""

    ranks = start_ranks(best)
    ends = [rank.communicate(timeout=600) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    assert "resumed after" in ends[0][0] and without_gloo(ends[1][0]) == "", "one rank speaks"
    result = json.loads((best.parent / "out" / "result.json").read_text())
    assert result["record"]["workers"] == 2 and [r["epoch"] for r in result["history"]] == list(range(1, 31))
