"""What an allocation grants, from Slurm's variables."""

import pytest

from bigbatch.cluster.host.allocation import granted_gpus
from bigbatch.cluster.host.slurm_commands import parse_job_fields
from bigbatch.cluster.job.allocated_nodes import NoAllocation, node_cpus, read_allocation
from helpers.stand_in_slurm import names


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


def test_the_grant_is_read_from_slurms_variables():
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_CPUS_PER_NODE": "4,2"}
    env |= {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_END_TIME": "1700000000", "SLURM_RESTART_COUNT": "3"}
    allocation = read_allocation(env, names)
    assert (allocation.head.name, allocation.cpus, allocation.gpus, allocation.end_time) == ("a", 6, 4, 1.7e9)
    assert allocation.restart_count == 3
    with pytest.raises(NoAllocation, match="Write: sbatch"):
        read_allocation({}, names)


@pytest.mark.parametrize("about", [{"HetJobId": "12"}, {}], ids=["its own", "of the shell it was submitted from"])
def test_a_heterogeneous_job_is_refused(about):
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a", "SLURM_HET_SIZE": "2", "SLURM_JOB_END_TIME": "1"}
    fields = lambda job: {"JobState": "RUNNING", **about}  # noqa: E731
    if not about:
        assert read_allocation(env, names, fields).head.name == "a"
        return
    with pytest.raises(NoAllocation, match="heterogeneous job. Submit one without ':'"):
        read_allocation(env, names, fields)


def test_a_task_of_an_array_is_refused():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_ARRAY_TASK_ID": "2"}
    with pytest.raises(NoAllocation, match="array"):
        read_allocation(env, lambda nodes: ["n1"], lambda job: {"ArrayJobId": "6", "ArrayTaskId": "2"})


ABOUT = "JobId=2 Restarts=0 EndTime=Unknown JOB_GRES={gres} Nodes=n1 CPU_IDs=0 Mem=4000 GRES= {memory} WorkDir=/home/a"
"""Words of ``scontrol --details --oneliner show job`` of Slurm 22.05."""
SHELL = {
    **{"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_HET_SIZE": "2", "SLURM_RESTART_COUNT": "2"},
    **{"SLURM_GPUS_ON_NODE": "1", "SLURM_GPUS_PER_NODE": "1", "SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"},
    **{"SLURM_STEP_NUM_TASKS": "4", "SLURM_MEM_PER_NODE": "500"},
}
"""What a shell of ``srun --gres=gpu --mem=500`` in a task of an array hands on to ``sbatch``."""
BATCH = {"SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_MEM_PER_CPU": "4000"}


def test_variables_of_the_job_from_whose_shell_a_job_was_submitted_are_forgotten():
    env = {**SHELL, **BATCH, "HOME": "/home/a"}
    about = parse_job_fields(ABOUT.format(gres="(null)", memory="MinMemoryCPU=4000M"))
    allocation = read_allocation(env, names, lambda job: about)
    assert env == {**BATCH, "HOME": "/home/a"}
    assert (allocation.restart_count, allocation.gpus, allocation.cpus, allocation.end_time) == (0, 0, 2, None)
    assert allocation.work_folder == "/home/a"


def test_variables_that_slurm_confirms_stay():
    own = {"SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    own |= {"SLURM_MEM_PER_NODE": "500", "SLURM_JOB_END_TIME": "1", "SLURM_GPUS_PER_NODE": "2"}
    for memory, answer in (("MinMemoryNode=500M", True), ("", True), ("", False)):
        about = parse_job_fields(ABOUT.format(gres="gpu:2", memory=memory)) if answer else {}
        env = dict(own)
        assert read_allocation(env, names, {"2": about}.__getitem__).gpus == 2 and env == own
