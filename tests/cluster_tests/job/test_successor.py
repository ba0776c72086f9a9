"""The job that goes on when this one has ended."""

from __future__ import annotations

from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.job import restart
from helpers.stand_in_slurm import stand_in


def test_a_successor_is_given_what_the_job_was_given():
    fields = {"JobName": "bb", "Partition": "gpu", "Account": "(null)", "TimeLimit": "02:00:00", "NumNodes": "3"}
    fields |= {"CPUs/Task": "8", "TresPerNode": "gres:gpu:a100:4", "MinMemoryNode": "64G", "QOS": "normal"}
    assert restart.sbatch_options(fields) == [
        *("--job-name=bb", "--partition=gpu", "--qos=normal", "--time=02:00:00", "--cpus-per-task=8", "--mem=64G"),
        *("--gres=gpu:a100:4", "--nodes=3"),
    ]


def test_a_successor_is_given_gpus_however_they_were_asked_for():
    job = {"NumNodes": "2", "NumTasks": "2", "CPUs/Task": "4", "MinMemoryNode": "0"}

    def given(**fields: str) -> set[str]:
        return set(restart.sbatch_options({**job, **fields})) - {"--nodes=2"}

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
    assert restart.environment_for_successor({**env, **kept}) == kept


def test_the_mark_of_a_successor_stands_beside_the_users_comment():
    assert restart.comment_with_mark("(null)", "7") == restart.comment_with_mark(None, "7") == "bigbatch-after-7"
    assert restart.comment_with_mark("project x bigbatch-after-7", "8") == "project x bigbatch-after-8"


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
    assert restart.find_successor("8") == "10"
