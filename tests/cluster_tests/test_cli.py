"""``bigbatch cluster`` as a user meets it: what it prints, what it refuses, and that it needs no installation."""

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch import cancel, logs, queue, submit
from bigbatch.cluster.host.profiles import InputError, find_site
from bigbatch.cluster.host.slurm_commands import SlurmError
from bigbatch.cluster.record import job_record
from bigbatch.cluster.record.job_record import JobRecord
from bigbatch.cluster.submission import queue as queue_module
from bigbatch.command import main
from helpers import commands
from helpers.paths import ROOT
from helpers.processes import clean_environment, program

PYTHON = ("--python", sys.executable)
DRY = ("submit", "--dry-run", *PYTHON)


def run(*arguments: object, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process, with nothing of the machine's Slurm on PATH, unless ``PATH`` says so."""
    env = {"BIGBATCH_HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "PATH": "/nowhere", **env}
    with pytest.MonkeyPatch.context() as bare:
        for name in [name for name in os.environ if name.startswith(("BIGBATCH_", "SBATCH_", "XDG_"))]:
            bare.delenv(name)
        return commands.run("cluster", *arguments, cwd=ROOT / "src", main=main, **env)


BAD_INPUT = {
    "no such command": (("submti",), "submit"),
    "unknown site": ((*DRY, "--site", "jeanzay"), "Did you mean 'jean_zay'?"),
    "option of the search misspelled": ((*DRY, "--trails", "3"), "--trials"),
    "value of the search": ((*DRY, "--trials", "many"), "many"),
    "options and a command": ((*DRY, "--trials", "3", "--", "echo"), "--trials"),
    "no account": ((*DRY, "--site", "jean_zay"), "--account"),
    "interpreter missing": (("submit", "--dry-run", "--python", "/no/python"), "/no/python"),
    "image missing": ((*DRY, "--container", "none.sif"), "--container must be an existing file; got 'none.sif'"),
    "sbatch missing": (("submit", *PYTHON, "--cpus-per-node", "2"), "sbatch"),
    "squeue missing": (("queue",), "squeue"),
    "scancel missing": (("cancel", "12"), "scancel"),
    "cancel nothing": (("cancel",), "JOBID"),
    "cancel everything": (("cancel", "*"), "number"),
    "logs of no job": (("logs", "12"), "12"),
    "tunnel to no job": (("tunnel", "12"), "no record"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_wrong_input_is_one_line_and_exit_code_2(name, tmp_path):
    arguments, expected = BAD_INPUT[name]
    done = run(*arguments, home=tmp_path)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1 and expected in lines[0], done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


# Jobs


def slurms(folder: Path, **programs: str) -> str:
    """Programs in place of Slurm's: what they are asked goes to ``<name>.asked``. Returns PATH."""
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        program(folder / name, f'echo "$*" >> {folder}/{name}.asked\n{script}')
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BIGBATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "home"


def a_record(job_id: str, **values: object) -> JobRecord:
    found = JobRecord(job_id, str(values.pop("state", "running")), **values)  # type: ignore[arg-type]
    found.write()
    return found


def a_study(folder: Path, done: int, best: float) -> str:
    """A journal in Optuna's format; that the format is right is tested in record/test_study_progress.py."""
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"name": folder.name, "trials": 12}))
    entries: list[dict[str, object]] = [{"op_code": 0, "study_name": folder.name, "directions": [2]}]
    for number in range(done):
        entries.append({"op_code": 4, "study_id": 0})
        entries.append({"op_code": 6, "trial_id": number, "state": 1, "values": [best if number == 0 else 0.1]})
    (folder / "optuna.journal").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(folder)


SQUEUE = """\
cat <<'END'
101|RUNNING|1:02:03|4:00:00|2|gpu|None|bigbatch
102|PENDING|0:00|4:00:00|4|gpu|Resources|a|name
END"""


def test_queue_shows_slurms_state_the_records_and_the_studys_progress(tmp_path, home, monkeypatch):
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", squeue=SQUEUE))
    a_record("101", state="driver", study_folder=a_study(tmp_path / "mine", 5, 0.8125), restarts=2)
    a_record("99", state="ended", reason="finished", nodes=["n1", "n2"])
    a_record("98", state="requeueing", successor="101")
    found = queue()
    assert [job.job_id for job in found] == ["101", "102"]
    assert found[0].study.finished == 5 and found[0].record.restarts == 2 and found[1].name == "a|name"
    assert getpass.getuser() in (tmp_path / "bin" / "squeue.asked").read_text(), "only the user's own jobs"
    jobs_text = queue_module.jobs_table(queue(ended=True))
    lines = jobs_text.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "98", "99", "101", "102"]
    assert lines.pop(1).split()[:3] == ["98", "GONE", "requeueing"] and "goes on as job 101" in jobs_text
    assert lines[1].split()[:3] == ["99", "-", "ended"] and "finished" in lines[1]
    for text in ("RUNNING", "driver", "mine", "5/12", "0.8125", "restarts: 2"):
        assert text in lines[2], text
    assert "PENDING" in lines[3] and "Resources" in lines[3]
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", squeue="exit 1"))
    assert "GONE" not in queue_module.jobs_table(queue(ended=True)), "Slurm did not answer"


def test_cancel_ends_the_job_and_no_other(tmp_path, home, monkeypatch):
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", scancel="exit 0"))
    a_record("101")
    assert cancel("101") == ["101"]
    assert (tmp_path / "bin" / "scancel.asked").read_text().split() == ["101"]
    for job_id in ("", "*", "-u", "1,2", "6_[1-2%1]"):
        with pytest.raises(InputError):
            cancel(job_id)


def test_an_id_that_slurm_does_not_know_is_not_called_cancelled(tmp_path, home, monkeypatch, capsys):
    # As Slurm 22.05: scancel says nothing of such a job, and squeue that the id is invalid.
    unknown = "case \"$*\" in *--jobs\\ 7) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac"
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", scancel="exit 0", squeue=f"{unknown}; echo RUNNING"))
    with pytest.raises(SlurmError, match="job 7 is not in Slurm's queue"):
        cancel("7")
    assert cancel(8) == ["8"]
    assert (tmp_path / "bin" / "scancel.asked").read_text().split() == ["7", "8"], "it is cancelled in any case"
    assert main(["cluster", "cancel", "7", "8"]) == 2
    out, err = capsys.readouterr()
    assert out == "Cancelled: 8\n" and "job 7 is not in Slurm's queue" in err


def test_cancel_follows_a_chain_to_the_job_that_waits(tmp_path, home, monkeypatch):
    scancel = """case "$1" in 101|102) echo 'Job/step already completing or completed' >&2; exit 1;; esac
[ "$1" = 106 ] && { echo 'Unable to contact slurm controller' >&2; exit 1; }; exit 0"""
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", scancel=scancel))
    a_record("101", state="requeueing", successor="102")
    a_record("102", state="requeueing", successor="103")  # 103 is pending: it has no record
    assert cancel("101") == ["103"]
    a_record("102", state="ended")
    with pytest.raises(SlurmError, match="already completing"):
        cancel("102")
    a_record("104", successor="106")
    with pytest.raises(SlurmError, match="Unable to contact"):
        cancel("104")


def test_logs_are_the_jobs_or_a_nodes(tmp_path, home):
    nodes = home / "jobs" / "101" / "nodes"
    (tmp_path / "job.log").write_text("epoch 1\n")
    a_record("101", log=str(tmp_path / "job.log"))
    nodes.mkdir()
    (nodes / "n1.log").write_text("head\n")
    (nodes / "n11.log").write_text("worker\n")
    assert logs(101) == "epoch 1\n"
    assert logs("101", node="n1") == "head\n"
    with pytest.raises(InputError, match="n2"):
        logs("101", node="n2")
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "102.log").write_text("before the record\n")
    assert logs("102") == "before the record\n"


def test_follow_shows_what_comes_also_before_there_is_a_log(tmp_path, home):
    path = f"{slurms(tmp_path / 'bin', squeue=SQUEUE)}:/usr/bin:/bin"
    with subprocess.Popen(
        [sys.executable, "src/bigbatch", "cluster", "logs", "102", "-f"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE, env={**clean_environment(), "BIGBATCH_HOME": str(home), "PATH": path},
    ) as following:  # fmt: skip
        assert following.stdout is not None and following.stderr is not None
        assert "102.log" in following.stderr.readline(), "tail says what it waits for"
        (home / "logs").mkdir(parents=True)
        (home / "logs" / "102.log").write_text("one\n")
        assert following.stdout.readline() == "one\n"
        with (home / "logs" / "102.log").open("a") as log:
            log.write("two\n")
        assert following.stdout.readline() == "two\n"
        following.kill()


def test_following_a_job_that_never_was_ends_with_a_message(tmp_path, home):
    path = slurms(tmp_path / "bin", squeue="echo '13|PENDING|0:00|1:00|2|gpu|Priority|x'")
    for more in ((), ("--node", "n1")):
        done = run("logs", "12", "-f", *more, home=home, PATH=path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "has a log once" in done.stderr
    assert not home.exists()


def test_tunnel_says_how_and_never_shows_the_token(tmp_path, home, monkeypatch):
    token = tmp_path / "token"
    token.write_text("very-secret")
    a_record("101", head="n7", dashboard_port=24001, token_path=str(token))
    text = queue_module.tunnel("101", find_site("juwels_booster"), local_port=9000)
    user = getpass.getuser()
    line = f"ssh -N -L 9000:127.0.0.1:24001 -J {user}@juwels-booster.fz-juelich.de {user}@n7"
    assert line in text and "http://127.0.0.1:9000" in text and str(token) in text
    assert "very-secret" not in text
    assert "does not forward" in queue_module.tunnel("101", find_site("jean_zay"))
    a_record("102", state="allocation read")
    with pytest.raises(InputError, match="allocation read"):
        queue_module.tunnel("102", find_site("generic"))
    a_record("103", state="ended", head="n7", dashboard_port=24001)
    with pytest.raises(InputError, match="no dashboard; its state is 'ended'"):
        queue_module.tunnel("103", find_site("generic"))
    # A job that was lost with its node: its record still says `driver`, and Slurm no longer lists it.
    monkeypatch.setenv("PATH", slurms(tmp_path / "bin", squeue="exit 0"))
    with pytest.raises(InputError, match="job 101 has no dashboard; it has ended"):
        queue_module.tunnel("101", find_site("generic"))


def test_the_python_api_returns_the_script_of_a_dry_run(home):
    script = submit("--space", "smoke", site="generic", nodes=3, cpus_per_node=2, python="python", dry_run=True)
    assert "#SBATCH --nodes=3" in script and "--space smoke" in script
    assert not home.exists() and job_record.read_record("1") is None
    with pytest.raises(InputError, match="nodes"):
        submit("--space", "smoke", site="generic", nodse=4, dry_run=True)  # type: ignore[call-arg]
