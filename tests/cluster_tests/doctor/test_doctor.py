"""The doctor: what it sees of a real machine, and what it makes of nodes that are not as they should be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch.cluster.doctor import probe
from bigbatch.cluster.doctor.command import judge_nodes
from helpers.paths import ROOT
from helpers.processes import clean_environment


def healthy(*names: str) -> list[dict]:
    """The facts of nodes with which nothing is wrong."""
    seen = {"python": "3.11.7 (/env/bin/python)", "packages": "ray 2.60.0", "GPUs": "4"}
    seen |= {"temp folder": "/tmp", "shared folder": "/shared"}
    return [{"host": name, **{what: [value, ""] for what, value in seen.items()}} for name in names]


def test_nothing_is_wrong_with_healthy_nodes():
    findings = judge_nodes(healthy("n1", "n2"), 2, "", in_job=True)
    assert {finding.status for finding in findings} == {"OK"} and not any(finding.advice for finding in findings)


WRONG = {
    "another Python": ("python", "3.12.1", ""),
    "another Ray": ("packages", "ray 2.59.0", ""),
    "GPUs that torch cannot use": ("GPUs", "4", "torch can use none: driver too old"),
    "no temp folder": ("temp folder", "/tmp", "cannot be used: Read-only file system"),
    "another shared folder": ("shared folder", "/shared", "/shared is another folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_node_that_differs_is_named_with_what_to_do(name):
    what, seen, wrong = WRONG[name]
    nodes = healthy("n1", "n2")
    nodes[1][what] = [seen, wrong]
    findings = {finding.what: finding for finding in judge_nodes(nodes, 2, "", in_job=True)}
    assert findings[what].status == "FAIL" and f"n2: {wrong or seen}" in findings[what].seen and findings[what].advice
    assert {finding.status for finding in findings.values() if finding.what != what} == {"OK"}, "only this one is wrong"


def test_a_login_node_needs_no_packages_and_a_node_without_an_answer_is_a_fault():
    nodes = healthy("n1")
    nodes[0]["python"] = ["3.11.7", "without ray"]
    assert [judge_nodes(nodes, 1, "", in_job=here)[0].status for here in (True, False)] == ["FAIL", "WARN"]
    (finding,) = judge_nodes(nodes, 2, "No module named bigbatch", in_job=True)
    assert finding.status == "FAIL" and finding.seen == "1 of 2: No module named bigbatch"


# The probe, on this machine


def test_gpus_are_counted_as_slurm_grants_and_as_a_process_sees_them(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_torch_refuses", lambda: "")
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()

    def judged(**env: str) -> tuple[str, str]:
        return probe.judge_gpus({"SLURM_JOB_ID": "1", **env}, dev=tmp_path)

    assert judged(SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="0,1") == ("2", "")
    assert judged(SLURM_JOB_GPUS="0,1,3", CUDA_VISIBLE_DEVICES="0,1") == ("2", "3 granted, 2 seen")
    assert judged(SLURM_GPUS_ON_NODE="4") == ("4", "")
    assert judged(CUDA_VISIBLE_DEVICES="NoDevFiles") == ("0", "")
    parts = ",".join(f"MIG-{number}" for number in range(7))
    assert judged(SLURM_GPUS_ON_NODE="7", CUDA_VISIBLE_DEVICES=parts) == ("7", ""), "parts of one GPU have one file"
    assert probe.judge_gpus({}, dev=tmp_path) == ("4", "")
    one = {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "1"}
    assert probe.judge_gpus(one, dev=tmp_path / "none") == ("0", "1 granted, 0 seen")


REFUSES = """
def zeros(*_):
    raise RuntimeError("CUDA error: no kernel image is available for execution\\nCompile with TORCH_USE_CUDA_DSA.")
"""


def test_a_gpu_counts_only_if_torch_can_compute_on_it(tmp_path, monkeypatch):
    """A torch that was not built for this GPU fails at its first kernel. CUDA's advice follows the reason."""
    (tmp_path / "torch.py").write_text(REFUSES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reason = "RuntimeError: CUDA error: no kernel image is available for execution"
    assert probe._torch_refuses() == f"torch can use none: {reason}"


@pytest.mark.gpu
def test_a_gpu_on_which_torch_computes_is_in_order():
    assert probe._torch_refuses() == ""


def test_a_folder_that_is_not_that_of_the_doctor_or_is_full_is_found(tmp_path, monkeypatch):
    (tmp_path / "mark").write_text("0011")
    env = {"BIGBATCH_NODE_TMP": "/nowhere"}
    found = probe.facts(tmp_path, "0011", env)
    assert found["shared folder"] == (str(tmp_path.parent), "")
    assert found["temp folder"] == ("/nowhere", "cannot be used: No such file or directory")
    assert "is another folder" in probe.facts(tmp_path, "2233", env)["shared folder"][1]
    monkeypatch.setattr(probe, "LEAST_FREE_BYTES", 2**80)
    assert probe.why_unusable(tmp_path).endswith("files are free")
    assert "has 13 characters" in probe.facts(tmp_path, "", {"BIGBATCH_NODE_TMP": "/tmp/too/long"})["temp folder"][1]


def test_a_tensor_is_summed_and_a_node_without_the_networks_interface_says_so(tmp_path):
    pytest.importorskip("torch")
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "BIGBATCH_INTERFACE": "lo"}
    assert probe._reduce(tmp_path / "gloo.json", "gloo", env) is None
    with pytest.raises(OSError, match="must have an IPv4 address; got 'nosuch0'"):
        probe._reduce(tmp_path / "gloo.json", "gloo", {**env, "BIGBATCH_INTERFACE": "nosuch0"})


# The command


def found_by(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {entry["what"]: entry for entry in map(json.loads, done.stdout.splitlines())}


def examine(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    bare = {k: v for k, v in clean_environment().items() if not k.startswith(("BIGBATCH_", "XDG_"))}
    return subprocess.run(
        [sys.executable, "src/bigbatch", "cluster", "doctor", *arguments], cwd=ROOT, capture_output=True, text=True,
        env={**bare, "BIGBATCH_HOME": str(home), "XDG_CONFIG_HOME": str(home), "PATH": "/nowhere", **env}, timeout=240,
    )  # fmt: skip


def test_it_examines_a_machine_without_slurm_or_anything_else(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    done = examine(home, "--json")
    found = found_by(done)
    assert found["Slurm"]["status"] == "WARN"
    assert found["shared folder"]["status"] == "OK"
    assert done.returncode == (1 if any(entry["status"] == "FAIL" for entry in found.values()) else 0)
    assert list(home.iterdir()) == [], "it cleans up after itself"


def test_a_fault_is_exit_code_1_and_says_what_to_do_and_nothing_is_created(tmp_path):
    shared = tmp_path / "missing" / "shared"
    done = examine(tmp_path / "new" / "home", "--shared", str(shared))
    assert done.returncode == 1 and f"FAIL shared folder  {shared}: No such file" in done.stdout, done.stdout
    found = found_by(examine(tmp_path / "new" / "home", "--json"))
    assert found["shared folder"]["status"] == "OK", "asked in the folder in which a job will make its home"
    assert list(tmp_path.iterdir()) == []
