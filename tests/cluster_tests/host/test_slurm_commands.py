"""Slurm's commands that fail or do not answer. Its variables and answers as sites and Slurm's documentation have them,
each with where it is from."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.allocation import granted_gpus, usable_cpus, usable_memory_bytes
from bigbatch.cluster.job.allocated_nodes import read_allocation
from helpers.stand_in_slurm import stand_in


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
    "said",
    [
        "77",
        "77;fast",
        "*** Welcome to the cluster: 4096 nodes ***\n\nYour project has 120 hours left.\n77",
        "77\nPlease cite us.",
        "Submitted batch job 77",
        "Charging project 12\nSubmitted batch job 77 on cluster fast\n",
    ],
)
def test_the_id_of_a_job_is_found_beside_what_a_wrapper_of_sbatch_says(said, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, sbatch=f"cat <<'END'\n{said}\nEND")
    assert slurm_commands.sbatch("job.slurm") == "77"


def test_a_wrapper_of_sbatch_that_names_no_job_is_refused_in_one_line(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, sbatch="echo 'Hello'; echo 'job is queued'")
    with pytest.raises(slurm_commands.SlurmError, match="must print the job's id; got 'job is queued'"):
        slurm_commands.sbatch("job.slurm")
    lost = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, sbatch=lost)
    with pytest.raises(slurm_commands.SlurmSilent, match=r"recv operation\. Look first whether the job is there"):
        slurm_commands.sbatch("job.slurm")
    refuses = "echo 'sbatch: error: invalid account' >&2; echo 'See https://help for accounts' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, sbatch=refuses)
    with pytest.raises(slurm_commands.SlurmError, match="sbatch failed: sbatch: error: invalid account$"):
        slurm_commands.sbatch("job.slurm")


SBATCH = "https://slurm.schedmd.com/sbatch.html, output environment variables"
GRES = "https://slurm.schedmd.com/gres.html"
TRES = "https://slurm.schedmd.com/tres.html"

READ: dict[Callable[[str | None], Any], list[tuple[str | None, Any, str]]] = {
    slurm_commands.read_gpu_count: [
        ("8", 8, SBATCH),
        ("8(S:0-1)", 8, "a site's prolog; the list of sockets is that of sinfo's Gres"),
        (" 4 ", 4, "a blank from a prolog's echo"),
        ("gpu:(null):3(IDX:0-7)", 3, "scontrol -d show node, Slurm 21.08.5, prometheus-slurm-exporter"),
        ("gpu:nvidia_h100_80gb_hbm3_3g.40gb:3(S:0-1),gpu:nvidia_h100_80gb_hbm3_1g.10gb:6(S:0-1)", 9, "MIG, Alliance"),
        ("gpu:a100:2(IDX:0,2-3),shard:0", 2, GRES),
        ("gres/gpu:a100=1,gres/gpu=1", 1, "https://github.com/NordicHPC/slurm2sql/issues/12"),
        ("cpu=4,mem=8G,node=1,billing=4,gres/gpu=2", 2, TRES),
        ("gres:gpu:4", 4, "TresPerNode of scontrol show job, Slurm 20.11"),
        ("gres/gpu:a100:4", 4, "TresPerNode of scontrol show job, Slurm 23.11"),
        ("volta:3,kepler:5", 8, "https://slurm.schedmd.com/sbatch.html, --gpus"),
        ("cpu=8,mem=32G", None, TRES),
        (None, None, "not in a job with GPUs"),
        ("(null)", None, "scontrol"),
    ],
    slurm_commands.count_listed_devices: [
        ("0,1,2,3", 4, "SLURM_JOB_GPUS, https://github.com/awslabs/sockeye/issues/1038 (SLURM_JOB_GRES)"),
        ("0,2-3", 3, "IDX of scontrol -d show job"),
        ("NoDevFiles", 0, "Slurm where a step has no GPU, slurm's gpu_common.c"),
        ("", 0, "a step with --gres=none"),
        ("N/A", 0, "scontrol"),
    ],
    slurm_commands.per_node: [
        ("72(x2),36", [72, 72, 36], SBATCH),
        ("", [], "a variable that a wrapper exports empty"),
        (None, [], "outside of a job"),
        ("4(x,2", [], "cut off"),
    ],
    slurm_commands.read_count: [
        ("12", 12, SBATCH),
        ("250+", 250, "https://slurm.schedmd.com/sinfo.html, --exact"),
        ("2K", 2048, "https://slurm.schedmd.com/sinfo.html, --noconvert"),
        ("infinite", None, "sinfo %s"),
    ],
    slurm_commands.memory_bytes: [
        ("2500", 2500 * 2**20, SBATCH),
        ("64G", 65536 * 2**20, "MinMemoryNode of scontrol show job"),
        ("16Gn", 16384 * 2**20, "sacct's ReqMem, older versions"),
        ("0", None, "--mem=0: all that the node has"),
        ("", None, "empty"),
    ],
}


@pytest.mark.parametrize(("read", "text", "value", "source"), [(f, *row) for f, rows in READ.items() for row in rows])
def test_what_is_read(read, text, value, source):
    assert read(text) == value, source


@pytest.mark.parametrize(
    ("text", "low", "high"), [("2-4", 2, 4), ("3", 3, 3), ("1-infinite", 1, None), ("1-2K", 1, 2048), ("", None, None)]
)
def test_ranges_of_nodes(text, low, high):
    assert (slurm_commands.least_count(text), slurm_commands.largest_count(text)) == (low, high)


def test_moments():
    asked = time.mktime((2026, 11, 22, 10, 30, 0, 0, 0, -1))
    assert slurm_commands.seconds_since_epoch("2026-11-22T10:30:00") == asked
    assert slurm_commands.seconds_since_epoch("1790000000") == 1790000000.0, "SLURM_JOB_END_TIME"
    for text in ("Unknown", "N/A", "None", "", None, "Tomorr 10:00", "NONE"):
        assert slurm_commands.seconds_since_epoch(text) is None


def test_resources_with_flags_and_units():
    parts = slurm_commands.gres_parts("gpu:kepler:2,mps:kepler:400,bandwidth:lustre:no_consume:4G,craynetwork:4")
    cards = [("gpu", "kepler", 2), ("mps", "kepler", 400)]
    assert parts == [*cards, ("bandwidth", "lustre", 4 * 2**30), ("craynetwork", "", 4)]
    assert slurm_commands.gres_parts("gres/gpu:a100=1,gres/gpu=3") == [("gpu", "a100", 1), ("gpu", "", 2)]
    assert slurm_commands.gres_parts("gpu") == [("gpu", "", 1)] and slurm_commands.gres_parts("(null)") == []


JOB = (
    "JobId=12345 JobName=my search UserId=user(1001) GroupId=g(1) EndTime=Unknown TimeLimit=UNLIMITED NumNodes=2-4 "
    "ReqTRES=cpu=16,mem=64G,node=4,billing=16,gres/gpu=4 CPUs/Task=4 TresPerNode=gres/gpu:a100:4 "
    "Command=/home/user/a b/run.sh --x y=1 Comment=(null) "
)


def test_the_fields_of_a_job_that_has_blanks_in_its_values():
    fields = slurm_commands.parse_job_fields(f"A line of the site's.\n\n{JOB}\nJobId=9 JobName=another")
    assert fields["JobName"] == "my search" and fields["Command"] == "/home/user/a b/run.sh --x y=1"
    assert slurm_commands.seconds_since_epoch(fields["EndTime"]) is None
    assert slurm_commands.least_count(fields["NumNodes"]) == 2
    assert not slurm_commands.is_set(fields["Comment"]) and not slurm_commands.is_set(fields["TimeLimit"])
    assert slurm_commands.read_gpu_count(fields["ReqTRES"]) == 4 == slurm_commands.read_gpu_count(fields["TresPerNode"])
    assert slurm_commands.parse_job_fields("") == {}


ODD = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8(S:0-1)", "SLURM_CPUS_ON_NODE": "",
    "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_CPUS_PER_NODE": "96(x2)", "SLURM_RESTART_COUNT": "N/A",
    "SLURM_HET_SIZE": "", "SLURM_CPUS_PER_TASK": "", "SLURM_JOB_END_TIME": "Unknown", "SLURM_MEM_PER_NODE": "3G",
}  # fmt: skip


def test_a_job_with_odd_variables_starts_with_what_it_was_granted(tmp_path):
    allocation = read_allocation(ODD, hostnames=lambda text: ["n1", "n2"], fields=lambda job_id: {"EndTime": "Unknown"})
    assert (allocation.gpus_per_node, allocation.gpus) == (8, 16)
    assert (allocation.restart_count, allocation.end_time) == (0, None)
    assert [node.cpus for node in allocation.nodes] == [96, 96]
    assert granted_gpus({"SLURM_GPUS_ON_NODE": "8(S:0-1)"}) == 8 and granted_gpus({"SLURM_JOB_GPUS": "0-3"}) == 4
    assert usable_memory_bytes(ODD, tmp_path) == 3 * 2**30
    assert usable_cpus(ODD, tmp_path) >= 1
