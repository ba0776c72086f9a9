"""What a site grants a job, and what it refuses before the job is submitted."""

import os
from typing import Any

import pytest

from bigbatch.cluster.host.profiles import InputError, Partition, find_site, format_time
from bigbatch.cluster.submission import resources
from bigbatch.cluster.submission.request_checks import Request
from helpers.processes import program
from helpers.submissions import HOME, ask, script_of

REFUSED: dict[str, Any] = {
    "unknown partition": ({"partition": "gpu_p7"}, "gpu_p6"),
    "more GPUs than a node has": ({"partition": "gpu_p6", "gpus_per_node": 8}, "has 4 GPUs"),
    "GPUs of a partition without": (
        {"site": "generic", "partition": "c", "gpus_per_node": 2, "live": {"c": Partition("c", gpus_per_node=0)}},
        "Write a --partition with GPUs, or 0.",
    ),
    "more cores than a node has": ({"partition": "gpu_p6", "cpus_per_node": 97}, "96 cores"),
    "time over the partition's": ({"partition": "gpu_p5", "time": "20:00:01"}, "20:00:00"),
    "time that is none": ({"time": "tomorrow"}, "20h"),
    "time shorter than the warning": ({"time": "2"}, "--signal"),
    "no node": ({"nodes": 0}, "at least 1"),
    "no account": ({"account": None}, "--account PROJECT@v100"),
    "account of another GPU": ({"account": "abc@v100", "partition": "gpu_p6"}, "abc@h100"),
    "nodes over the partition's": ({"site": "juwels_booster", "nodes": 385}, "384"),
    "cores not known": ({"site": "grete"}, "--cpus-per-gpu"),
    "option of sbatch that is none": ({"options": ("-C inet",)}, "--constraint="),
    "online without internet": (
        {"site": "grete", "cpus_per_gpu": 8, "arguments": ("--wandb=online",)},
        "--wandb offline",
    ),
    "command missing": ({"arguments": ("--",)}, "command"),
    "array": ({"options": ("--array=1-3",)}, "--study NAME"),
    "tasks": ({"options": ("--ntasks=8",)}, "one task a node; got --sbatch=--ntasks=8. Write --nodes."),
    "cores of a task": ({"options": ("--cpus-per-task=0",)}, "Write --cpus-per-node N."),
    "signal by sbatch": ({"options": ("--signal=B:USR1@600",)}, "Write --signal …"),
    "nothing submitted": ({"options": ("--test-only",)}, "Write --dry-run."),
    "waiting for its end": ({"options": ("--wait",)}, "logs JOBID -f"),
    "restarts below none": ({"job_options": ("--max-restarts=-1",)}, "--max-restarts must not be negative; got -1"),
    "memory by sbatch": ({"options": ("--mem=4G",)}, "got --sbatch=--mem=4G. Write --mem …"),
    "no time limit where there is one": ({"time": "UNLIMITED", "partition": "gpu_p5"}, "got --time UNLIMITED"),
    "no GPU": ({"gres": "lots"}, "gpu:TYPE"),
    "several resources": ({"gres": "gpu:2,tmpdisk:1"}, "--sbatch=--gres="),
    "GPUs in their name": ({"gres": "gpu:v100:2"}, "Write the number as --gpus-per-node N"),
    "GPUs alone in their name": ({"gres": "gpu:2"}, "Write the number as --gpus-per-node N"),
    "GPUs in all": ({"options": ("--gpus=4",)}, "got --sbatch=--gpus=4. Write --gpus-per-node N."),
    "GPUs as a resource by sbatch": ({"options": ("--gres=tmpdisk:1,gpu:v100",)}, "Write --gres gpu:TYPE:N."),
    "workers over the GPUs": ({"nodes": 2, "arguments": ("--workers", "9")}, "--workers 8, or --nodes 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_site_does_not_grant_is_refused_in_one_line(name):
    wishes, expected = REFUSED[name]
    with pytest.raises(InputError) as caught:
        ask(**wishes)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_just_within_the_limits_is_granted():
    assert ask(partition="gpu_p5", time="20:00:00").time_s == 72000
    assert ask(site="generic", cpus_per_node=1, time="90m").time_s == 5400
    assert ask(site="juwels_booster", nodes=384).nodes == 384
    assert ask(partition="gpu_p6", gpus_per_node=4, cpus_per_gpu=24).cpus_per_node == 96
    assert ask(gpus_per_node=0).gpus_per_node == 0


def test_workers_are_left_to_the_job_where_sbatch_is_told_of_other_nodes():
    assert ask(nodes=2, arguments=("--workers", "9"), options=("--nodes=2-8",)).nodes == 2


@pytest.mark.parametrize(
    ("wishes", "gpus", "gres"),
    [
        ({"gres": "gpu:a100", "gpus_per_node": 4}, 4, "--gres=gpu:a100:4"),
        ({"gres": "gpu:1g.10gb", "gpus_per_node": 2}, 2, "--gres=gpu:1g.10gb:2"),
        ({}, 4, "--gres=gpu:4"),
        # Of two --gres Slurm would take the last, and the GPUs would be gone.
        ({"options": ("--gres=tmpdisk:10",)}, 4, "--gres=gpu:4,tmpdisk:10"),
    ],
)
def test_gpus_are_counted_however_they_are_asked_for(wishes, gpus, gres):
    live = {"gpu": Partition("gpu", gpus_per_node=4, cores_per_node=32, is_default=True)}
    request = Request(arguments=("--space", "smoke"), nodes=2, python="python", **wishes)
    site = find_site("generic", HOME)
    assert resources.job_resources(request, site, HOME, live).gpus_per_node == gpus
    lines = script_of(request, site, live=live).splitlines()
    said = [line for line in lines if line.startswith("#SBATCH --g")]
    assert said == [f"#SBATCH {gres}"]


def test_the_quality_of_service_is_the_sites_or_the_users():
    assert ask(time="20h").qos == "qos_gpu-t3" and ask(time="21h", qos="qos_gpu-t4").qos == "qos_gpu-t4"
    assert ask(site="generic", cpus_per_node=1).qos is None


def test_the_account_of_the_environment_counts_and_gets_its_suffix():
    assert ask(account=None, env={"SBATCH_ACCOUNT": "xyz"}, partition="gpu_p5").account == "xyz@a100"
    assert ask(account="abc@h100", partition="gpu_p6").account == "abc@h100"


def test_of_two_limits_the_tighter_one_counts():
    live = {
        "booster": Partition("booster", max_time_s=3600, max_nodes=8, gpus_per_node=4, cores_per_node=96),
        "new": Partition("new", max_time_s=7200, gpus_per_node=2, cores_per_node=64),
    }
    assert ask(site="juwels_booster", live=live).time_s == 3600  # in place of the usual 4 h
    assert ask(site="juwels_booster", live=live).cpus_per_node == 48  # the profile's cores, not Slurm's threads
    for wishes in ({"nodes": 9}, {"time": "2h"}):
        with pytest.raises(InputError):
            ask(site="juwels_booster", live=live, **wishes)
    # A partition that the profile does not know is as good, if Slurm does.
    assert ask(site="juwels_booster", live=live, partition="new", gpus_per_node=1).cpus_per_node == 32


def test_without_a_profile_slurms_own_default_is_taken():
    live = {
        "cpu": Partition("cpu", gpus_per_node=0, cores_per_node=16),
        "gpu": Partition("gpu", gpus_per_node=2, cores_per_node=8, is_default=True, max_nodes=3),
    }
    granted = ask(site="generic", live=live)
    assert (granted.partition.name, granted.gpus_per_node, granted.cpus_per_node) == ("gpu", 2, 8)
    assert ask(site="generic", live=live, partition="cpu").gpus_per_node == 0
    with pytest.raises(InputError, match="has 0 GPUs"):
        ask(site="generic", live=live, partition="cpu", gpus_per_node=1)


SINFO = """\
cpu|infinite|1-infinite|128|(null)|20
cpu|infinite|1-infinite|64|(null)|4
gpu*|1-00:00:00|1-64|64|gpu:a100:4(S:0-1)|60
gpu*|1-00:00:00|1-64|96|gpu:h100:8,tmpdisk:1|60
mig|12:00:00|1|32|gpu:1g.10gb:4,gpu:2g.20gb:2|9
new|12:00:00|1-infinite|32|(null)|n/a
"""


def test_slurms_partitions_are_read_from_what_sinfo_prints(tmp_path, monkeypatch):
    program(tmp_path / "sinfo", f"cat <<'END'\n{SINFO}END")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    live = resources.slurm_partitions()
    assert live["cpu"].max_time_s is None and live["cpu"].max_nodes == 24 and live["cpu"].gpus_per_node == 0
    gpu = live["gpu"]
    assert (gpu.gpus_per_node, gpu.cores_per_node, gpu.max_nodes, gpu.is_default) == (8, 96, 64, True), "the largest"
    assert format_time(gpu.max_time_s) == "1-00:00:00"
    assert live["mig"].gpus_per_node == 6 and live["mig"].max_nodes == 1
    assert live["new"].max_nodes > 10**6, "an unreadable number is no limit"
