"""The doctor: what it sees of a real machine, and what it makes of nodes that are not as they should be."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bigbatch.cluster.doctor import command as doctor_command
from bigbatch.cluster.doctor import probe
from bigbatch.cluster.doctor.findings import (
    Finding,
    judge_allreduce,
    judge_answers,
    judge_nodes,
    judge_python,
)
from bigbatch.cluster.host import quota
from bigbatch.cluster.host.profiles import find_site, load_site
from helpers.paths import ROOT
from helpers.processes import clean_environment, program

MARK = "0011"


def healthy(*names: str) -> list[dict]:
    """The facts of nodes with which nothing is wrong."""
    return [
        {
            "host": name, "python": "3.11.7", "executable": "/env/bin/python", "code": "c0de",
            "packages": {"ray": "2.60.0", "torch": "2.15.0", "optuna": "5.0.0", "bigbatch": None},
            "gpus": {"granted": 4, "seen": 4, "refused": ""},
            "tmp": {"path": "/tmp", "error": None, "free_bytes": 100 * 2**30, "free_inodes": 10**6},
            "shared": {"path": "/shared/.x", "error": None, "mark": MARK, "free_bytes": 2**40, "free_inodes": None},
        }
        for name in names
    ]  # fmt: skip


def judged(nodes: list[dict]) -> dict[str, Finding]:
    return {finding.what: finding for finding in judge_nodes(nodes, MARK, in_job=True)}


def test_nothing_is_wrong_with_healthy_nodes():
    findings = judged(healthy("n1", "n2"))
    assert {finding.status for finding in findings.values()} == {"OK"}
    assert not any(finding.advice for finding in findings.values())
    assert {entry[2] for entry in WRONG.values()} <= findings.keys()


def change(node: dict, path: str, value: object) -> None:
    *above, last = path.split(".")
    for key in above:
        node = node[key]
    node[last] = value


WRONG = {
    "another Python": ("python", "3.12.1", "python", "FAIL", "3.12.1"),
    "another Ray": ("packages.ray", "2.59.0", "packages", "FAIL", "2.59.0"),
    "changed files": ("code", "0ther", "code", "FAIL", "0ther"),
    "a GPU that fell off": ("gpus.seen", 3, "GPUs", "FAIL", "4 granted, 3 seen"),
    "GPUs that torch cannot use": ("gpus.refused", "driver too old", "GPUs", "FAIL", "n2: driver too old"),
    "no temp folder": ("tmp.error", "Read-only file system", "temp folder", "FAIL", "Read-only"),
    "a full temp folder": ("tmp.free_bytes", 2**20, "node space", "FAIL", "0.0 GiB"),
    "another shared folder": ("shared.mark", None, "shared folder", "FAIL", "n2"),
    "a shared folder without writing": ("shared.error", "Permission denied", "shared folder", "FAIL", "Permission"),
    "few bytes left": ("shared.free_bytes", 2**31, "shared space", "WARN", "2.0 GiB"),
    "no inodes left": ("shared.free_inodes", 10, "shared space", "FAIL", "10 files"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_node_that_differs_is_named_with_what_to_do(name):
    path, value, what, status, expected = WRONG[name]
    nodes = healthy("n1", "n2")
    change(nodes[1], path, value)
    findings = judged(nodes)
    assert findings[what].status == status and expected in findings[what].seen and findings[what].advice
    assert "n2" in findings[what].seen or "space" in what
    others = [finding for finding in findings.values() if finding.what != what]
    assert {finding.status for finding in others} == {"OK"}, "only this one is wrong"


def test_what_all_nodes_lack_is_found_as_well():
    nodes = healthy("n1")
    change(nodes[0], "tmp.path", "/scratch/long/name")
    assert judged(nodes)["temp folder"].status == "FAIL"
    nodes = healthy("n1")
    nodes[0]["packages"]["ray"] = None
    finding = judged(nodes)["python"]
    assert finding.status == "FAIL" and "--python" in finding.advice
    assert judge_python(nodes, in_job=False).status == "WARN", "a login node does not need it"


def test_the_network_between_the_nodes_is_judged():
    good = [{"host": "n1", "gloo": 900.0, "nccl": 9000.0}, {"host": "n2", "gloo": 800.0, "nccl": 9000.0}]
    seen = "over 2 nodes: gloo 800 MB/s, nccl 9,000 MB/s"
    assert judge_allreduce(good, "", 2)[0] == Finding("OK", "all-reduce", seen)
    bad: list[dict] = [good[0], {"host": "n2", "error": "gloo: connection refused"}]
    assert judge_allreduce(bad, "", 2)[0].status == "FAIL"
    assert judge_allreduce([{"host": "n1", "error": "torch is not installed"}], "", 1)[0].status == "WARN"
    assert judge_answers("nodes answer", [], 2, "srun: error")[0].status == "FAIL"


# The probe, on this machine


def test_the_time_in_which_nccl_connects_the_nodes_is_no_part_of_its_rate(tmp_path, monkeypatch) -> None:
    """gloo, alone, on a clock on which the first sum takes 100 s, as NCCL's may, which connects there."""
    dist = pytest.importorskip("torch.distributed")
    real, sums = dist.all_reduce, list[None]()

    def all_reduce(tensor: object) -> None:
        sums.append(None)
        real(tensor)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=lambda: 100.0 * min(len(sums), 1) + len(sums)))
    rate = probe._reduce(tmp_path / "gloo.json", "gloo", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert rate == pytest.approx(16 * 2**20 / 1e6), "the second one takes a second"


def test_gpus_are_counted_as_slurm_grants_and_as_a_process_sees_them(tmp_path):
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()

    def counted(**env: str) -> tuple[object, object]:
        found = probe.visible_gpus({"SLURM_JOB_ID": "1", **env}, dev=tmp_path)
        return found["granted"], found["seen"]

    assert counted(SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="0,1") == (2, 2)
    assert counted(SLURM_JOB_GPUS="0,1,3", CUDA_VISIBLE_DEVICES="0,1") == (3, 2)
    assert counted(SLURM_GPUS_ON_NODE="4") == (4, 4)
    assert counted(CUDA_VISIBLE_DEVICES="NoDevFiles") == (0, 0)
    assert probe.visible_gpus({}, dev=tmp_path)["granted"] is None
    assert probe.visible_gpus({"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "1"}, dev=tmp_path / "none")["seen"] == 0


def test_the_codes_digest_changes_with_the_code(tmp_path):
    for house in probe.HOUSES:
        (tmp_path / house).mkdir()
    (tmp_path / "tune" / "a.py").write_text("x = 1\n")
    before = probe.code_digest(tmp_path)
    assert probe.code_digest(tmp_path) == before
    (tmp_path / "tune" / "a.py").write_text("x = 2\n")
    changed = probe.code_digest(tmp_path)
    (tmp_path / "tune" / "a.py").rename(tmp_path / "tune" / "b.py")
    assert len({before, changed, probe.code_digest(tmp_path)}) == 3


def test_a_node_without_the_networks_interface_says_so(tmp_path):
    pytest.importorskip("torch")
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "BIGBATCH_INTERFACE": "nosuch0"}
    with pytest.raises(OSError, match="must have an IPv4 address; got 'nosuch0'"):
        probe._reduce(tmp_path / "gloo.json", "gloo", env)
    assert probe.own_address("localhost", {"BIGBATCH_INTERFACE": "lo"}) == "127.0.0.1"


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
    assert found["Slurm"]["status"] == "WARN" and found["nodes answer"]["seen"] == "1 of 1"
    assert found["code"]["status"] == found["shared folder"]["status"] == found["privacy"]["status"] == "OK"
    assert done.returncode == (1 if any(entry["status"] == "FAIL" for entry in found.values()) else 0)
    assert list(home.iterdir()) == [], "it cleans up after itself"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_user_without_a_home_is_told_what_to_set():
    code = (
        "import encodings.idna, os, pwd, bigbatch.cluster.doctor.command\n"
        "from bigbatch.cluster.cli import cluster_main; os.setuid(54321); cluster_main(['doctor'])"
    )
    env = {key: value for key, value in clean_environment().items() if key not in ("HOME", "BIGBATCH_HOME")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.stderr == (
        "bigbatch cluster: error: jobs are recorded in a folder; got '~/.bigbatch', and there is no home. "
        "Set BIGBATCH_HOME to a folder that all nodes see, or HOME.\n"
    )


def test_a_fault_is_exit_code_1_and_says_what_to_do_and_nothing_is_created(tmp_path):
    shared = tmp_path / "missing" / "shared"
    done = examine(tmp_path / "new" / "home", "--shared", str(shared))
    assert done.returncode == 1 and f"FAIL shared folder  {shared}: No such file" in done.stdout, done.stdout
    assert "another --shared" in done.stdout
    found = found_by(examine(tmp_path / "new" / "home", "--json"))
    assert found["shared folder"]["status"] == "OK", "asked in the folder in which a job will make its home"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert f"chmod 700 {tmp_path / 'open'}" in examine(tmp_path / "open").stdout


def test_the_sites_quota_command_is_run_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "TIMEOUT_S", 2.0)
    command = program(tmp_path / "myquota", "printf '17 of 20 TiB in M\\374nchen\\n'")  # Latin-1
    profile = tmp_path / "mine.toml"
    for line, status, expected in (
        (str(command), "OK", "17 of 20 TiB in M\ufffdnchen"),
        (f"{command} '", "WARN", "a quote in quota_command is not closed"),
        (" ", "WARN", "not on PATH"),
        ("/no/such/quota -u", "WARN", "not on PATH"),
        ("sleep 60", "WARN", "it did not answer within 2 s"),
        ("/bin/false", "WARN", "/bin/false"),
    ):
        profile.write_text(f'name = "mine"\n[storage]\nquota_command = "{line}"\n')
        finding = doctor_command.judge_quota_command(load_site(profile))[0]
        assert finding.status == status and expected in finding.seen
    assert doctor_command.judge_quota_command(find_site("generic", {})) == []


def test_slurms_settings_are_judged(tmp_path, monkeypatch):
    config = "Configuration data as of now\nJobRequeue              = {}\nKillWait = {} sec\nSLURM_VERSION = 22.05.8\n"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def findings(requeue: int, kill_wait: int) -> dict[str, Finding]:
        program(tmp_path / "scontrol", f"cat <<'END'\n{config.format(requeue, kill_wait)}END")
        return {finding.what: finding for finding in doctor_command.judge_slurm(find_site("generic", {}))}

    fine = findings(1, 30)
    assert fine["Slurm"].seen == "version 22.05.8" and fine["requeue"].status == "OK" and "signal" not in fine
    poor = findings(0, 5)
    assert poor["requeue"].status == "WARN" and "--chain" in poor["requeue"].advice
    assert poor["signal"].status == "WARN" and "5 s" in poor["signal"].seen
