"""Ray clusters in real Slurm jobs: they start, compute, survive, and leave nothing behind."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from helpers.waiting import wait_until
from ray_job import SCRIPT, RayJob, held_s, python, trials_of
from virtual_cluster import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def submit(cluster: VirtualCluster):
    def start(*arguments: str, user: str = "alice", sbatch: tuple = (), **env: str) -> RayJob:
        return RayJob(cluster, user, sbatch, arguments, **env)

    return start


RESOURCES = """
    total = ray.cluster_resources()
    print("GOT", int(total["CPU"]), int(total.get("GPU", 0)), len(ray.nodes()), os.environ["RAY_ADDRESS"])
"""
IDLE = r"""
    print("IDLE", os.popen("pgrep -fc '^ray::[I]DLE|^[^ ]*python[^ ]* [^ ]*default_worker[.]py'").read())
"""


COPIES = """
    from bigbatch.train_loop.launch.ray_session import SEARCH_ENV, python_path
    has_torch = ray.remote(lambda: "torch" in sys.modules)
    of_search = {"env_vars": {**SEARCH_ENV, "PYTHONPATH": python_path()}}
    print("TORCH", *ray.get([has_torch.options(runtime_env=one).remote() for one in ({}, of_search)]))
"""


def test_one_node_computes_and_leaves_nothing(submit):
    job = submit(*python(RESOURCES, IDLE, COPIES), sbatch=("--gres=gpu:1",))
    log = job.wait_end("COMPLETED")
    assert re.search(r"GOT 2 1 1 10\.77\.0\.\d:2\d{4}", log), job.everything()
    assert "IDLE 0" in log, "a node starts no process that no search asked for"
    assert "TORCH False True" in log, "a search's processes are copies of one that has loaded it, and no others"
    assert job.leftovers() == []
    record = job.record
    assert (record["state"], record["restarts"]) == ("ended", 0) and record["address"].startswith("10.77.0.")
    assert not (job.files / "token").exists(), "it opens nothing any more"
    assert not (job.files / "ray-logs").exists(), "logs are kept of failed runs only"
    assert job.files.stat().st_mode & 0o777 == 0o700


@pytest.mark.exhaustive
def test_three_nodes_map_their_gpus_to_tasks(submit):
    driver = """
        @ray.remote(num_gpus=1, num_cpus=1)
        def where():
            time.sleep(0.5)
            return ray.util.get_node_ip_address(), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["RAY_ADDRESS"]
        seen = set(ray.get([where.remote() for _ in range(6)]))
        print("SEEN", len(seen), sorted({d for _, d, _ in seen}), len({i for i, _, _ in seen}))
    """
    job = submit(*python(RESOURCES, driver), sbatch=("-N3", "--gres=gpu:2"))
    log = job.wait_end("COMPLETED")
    assert "GOT 6 6 3" in log and "SEEN 6 ['0', '1'] 3" in log, job.everything()
    assert job.leftovers() == []


def test_two_jobs_and_two_users_share_a_node(cluster, submit):
    """Both end as if alone: the first one's end leaves the others' Ray untouched; a stranger's token is refused."""
    one = ("-c1", "-w", "n1", "--mem=2500")
    wait = "while not os.path.exists('go'): time.sleep(0.2)"
    jobs = [submit(*python(RESOURCES, wait, RESOURCES), user=user, sbatch=one) for user in ("alice", "bob")]
    for job in jobs:
        job.wait_log("GOT 1 0 1")
    addresses = {job.record["address"] for job in jobs}
    assert len(addresses) == 2
    stranger = f"""
import ray._raylet
try:
    print(ray._raylet.GcsClient(address="{jobs[1].record["address"]}").get_all_node_info(timeout=5))
except Exception as error:
    print("REFUSED", type(error).__name__, error)
"""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(jobs[0].files / "token")}
    told = cluster.run("n1", sys.executable, "-c", stranger, user="alice", env=token, check=False)
    assert "REFUSED" in told.stdout and "node_id" not in told.stdout, told.stdout
    (jobs[0].folder / "go").touch()
    jobs[0].wait_end("COMPLETED")
    (jobs[1].folder / "go").touch()
    assert jobs[1].wait_end("COMPLETED").count("GOT 1 0 1") == 2, jobs[1].everything()
    assert jobs[1].leftovers() == []


# Searches that go on


@pytest.fixture
def search(cluster: VirtualCluster, submit, tiny_images: Path, tiny_space: Path):
    """Submit a search whose trials train in a moment."""
    data = cluster.folder("alice", "data")
    shutil.copytree(tiny_images, data / "images")
    shutil.copy(tiny_space, data / "tiny_space.py")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def start(trials: int, *arguments: str, job_options: tuple = (), **keywords) -> RayJob:
        tiny = ("--space", f"{data}/tiny_space.py", "--data", f"{data}/images", "--model", "shufflenet_v2_x0_5")
        # A slow machine needs more than ten minutes, of which the last two start nothing more.
        keywords["sbatch"] = ("--time=30", *keywords.get("sbatch", ()))
        more = ("--set", "image_size=16", "--seed", "1", "--trials", str(trials), "--max-epochs", "2")
        return submit(*job_options, *tiny, *more, "--stopping", "none", "--confirm", "none", *arguments, **keywords)

    return start


def assert_every_trial_once(job: RayJob, trials: int) -> None:
    found = trials_of(job)
    assert [t.state.name for t in found] == ["COMPLETE"] * trials, job.everything()
    for trial in found:
        epochs = [key for key in trial.user_attrs if key.startswith("epoch/")]
        assert len(epochs) == 2 and len(trial.intermediate_values) == 2, trial


def test_near_the_time_limit_a_search_saves_requeues_and_goes_on(cluster, search, submit):
    """On two nodes with one core and memory for one worker each: what both have in all would fit on neither.

    Another job is refused its study meanwhile.
    """
    job = search(6, sbatch=("-N2", "-c1", "--mem=2500"))
    job.wait_log("→ credentials")
    study = Path(job.record["study_folder"])
    other = submit("--study", study.name, "--output", str(study.parent))
    assert f"is held by job {job.id} of alice on " in refusal(other)
    job.wait_log(r"has 2 nodes with 1 CPU core and 2\.1 GB: 2 trials at a time, each with 1 worker of 1 CPU")
    job.wait_log(r"trial \d+ epoch 2/2")
    cluster.run("ctl", "scancel", "--batch", "-s", "USR1", job.id, user="alice")
    job.wait_log("→ requeueing")
    job.wait_log("start 2;")
    log = job.wait_end("COMPLETED")
    assert "driver saved and ended with exit code 143" in log
    assert_every_trial_once(job, 6)
    assert (job.record["restarts"], job.record["fruitless_restarts"]) == (1, 0)
    assert job.leftovers() == []
    # Two devices, one a node. Slurm says the beginning and the end of each of the two starts to a second.
    assert held_s(job) == pytest.approx(2 * cluster.billed_s(job.id), rel=0.02, abs=2 * 4 * 1.0), job.everything()
    # The job's last act, after Slurm has named its state.
    wait_until(lambda: not (study / ".lease").exists(), "the lease must be given back", 120)


def test_gpus_that_torch_cannot_use_end_a_search_before_its_first_trial(search):
    """Files stand for the GPUs of two nodes."""
    job = search(2, sbatch=("-N2", "-c1", "--gres=gpu:1", "--mem=2500"))
    job.wait_end("FAILED")
    assert re.search(r"registered: 2 nodes, 2 CPUs, 2 GPUs", job.log), job.everything()
    assert "torch must be able to use the cluster's GPUs; got " in job.log and "trial 0" not in job.log, job.log


@pytest.mark.exhaustive
def test_a_search_outlives_a_worker_node_that_is_powered_off(cluster, search):
    # Slurm notices the lost node after up to 25 s; alone, the other one trains for longer.
    job = search(24, sbatch=("-N2", "-c1"))
    job.wait_log(r"trial \d+ epoch 1/2")
    worker = next(n for n in job.record["nodes"] if n != job.record["head"])
    cluster.poweroff(worker)
    log = job.wait_end("COMPLETED")
    assert f"node {worker} is gone" in log
    assert_every_trial_once(job, 24)
    assert job.leftovers() == []


@pytest.mark.exhaustive
def test_a_search_goes_on_after_its_first_node_was_powered_off(cluster, search):
    job = search(6, sbatch=("-N2", "-c1"), BIGBATCH_HUNG_S="15")
    job.wait_log(r"trial \d+ epoch 1/2")
    head = job.record["head"]
    cluster.poweroff(head)
    job.wait_log("start 2;")
    job.wait_end("COMPLETED")
    assert_every_trial_once(job, 6)
    assert head not in job.record["nodes"] and job.leftovers() == []


@pytest.mark.exhaustive
def test_a_hung_worker_node_is_given_up(cluster, search):
    job = search(24, sbatch=("-N2", "-c1"), BIGBATCH_HUNG_S="15")
    job.wait_log(r"trial \d+ epoch 1/2")
    worker = next(n for n in job.record["nodes"] if n != job.record["head"])
    cluster.suspend(worker)
    log = job.wait_end("COMPLETED")
    assert f"node {worker} hangs" in log
    assert_every_trial_once(job, 24)


@pytest.mark.exhaustive
def test_a_preempted_job_saves_within_its_grace_time(cluster, search):
    job = search(6, sbatch=("-N1", "-c2", "-p", "patient"))
    job.wait_log(r"trial \d+ epoch 2/2")
    urgent = ("-p", "urgent", "-N3", "-c2", "--exclusive", "-J", "urgent")
    other = cluster.sbatch("bob", *urgent, script="#!/bin/bash\nexec sleep 5\n")
    job.wait_log("the job is preempted")
    cluster.wait_state(other, "COMPLETED")
    if cluster.state(job.id) == "PENDING":
        cluster.start_now(job.id)
    log = job.wait_end("COMPLETED")
    assert "driver saved and ended with exit code 143" in log
    assert_every_trial_once(job, 6)


# Wrong input: refused in one line before nodes are waited for


def refusal(job: RayJob) -> str:
    """The one line that a job ended with."""
    job.wait_end("FAILED")
    assert job.cluster.job(job.id)["ExitCode"] == "2:0", job.log
    errors = [line for line in job.log.splitlines() if line.startswith("ray_head_workers.slurm: error:")]
    assert len(errors) == 1 and "Traceback" not in job.log and "→ workers" not in job.log, job.log
    return errors[0]


def test_what_cannot_be_is_refused(cluster, submit):
    """Side by side: each job ends as soon as it has begun."""
    asked = {
        "at most the allocation's 4 GPUs; got 5. Write --workers 4": submit(
            "--workers", "5", sbatch=("-N2", "--gres=gpu:2")
        ),
        "Set BIGBATCH_HOME to": submit("--space", "smoke", BIGBATCH_HOME="/proc/nowhere"),
        "Write --output with": submit("--space", "smoke", "--output", "/proc/nowhere"),
    }
    done = cluster.run("ctl", "bash", SCRIPT, "--space", "smoke", user="alice", check=False)  # outside of Slurm
    assert done.returncode == 2 and "Write: sbatch" in done.stderr and done.stderr.count("\n") == 1
    for expected, job in asked.items():
        assert expected in refusal(job) and "head n" not in job.log, job.log
