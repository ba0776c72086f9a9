"""Jobs of commit 6dde4d6: they are listed, they start again, and what they call is still there.

A queued job holds a copy of the batch script as it was, and runs the modules of the checkout as they are by then. So
each command line that an older script or job calls must go on working from the root of a clone that nobody installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bigbatch.cluster.record import job_record
from helpers.paths import ROOT
from helpers.processes import clean_environment
from helpers.stand_in_ray import StandInJob

LINES = [
    [part.strip() for part in line.split("|", 2)]
    for line in (Path(__file__).parent / "data" / "command_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]
SEARCH, CHAINED, SUCCESSOR, ENDED = "1", "2", "3", "4"
"""Jobs in the stored folder: waits to go on with its search; has a successor; runs in its place; went well."""
SAYS = ("--", sys.executable, "-c", "print('SAID BY THE DRIVER')")


@pytest.mark.parametrize(
    ("code", "words", "line", "installed"),
    [
        pytest.param(*line, installed, id=f"{line[2]}-{'installed' if installed else 'clone'}")
        for line in LINES
        for installed in (False, True)
        # Where Ray is installed, some answer otherwise; a shell script knows no difference.
        if not installed or (line[2].startswith("python3") and "ray" not in line[1])
    ],
)
def test_a_command_line_of_older_jobs_is_understood(code: str, words: str, line: str, installed: bool) -> None:
    interpreter = [sys.executable] if installed else [sys.executable, "-S"]
    command = [*interpreter, *line.split()[1:]] if line.startswith("python3") else line.split()
    env = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "BIGBATCH_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == int(code), done.stdout + done.stderr
    assert words in done.stdout + done.stderr


@pytest.fixture
def home(copy_of: Callable[[str], Path]) -> Path:
    """The user's home; the absolute paths in the records are of files that moved with it."""
    folder = copy_of("home")
    for path in folder.rglob("job.json"):
        path.write_text(path.read_text().replace("/home/alice", str(folder)))
    return folder


def bigbatch(home: Path, *arguments: str) -> str:
    """What ``bigbatch cluster`` prints, where there is no Slurm."""
    code = "import sys; sys.argv[0] = 'bigbatch'; from bigbatch.command import console; sys.exit(console())"
    done = subprocess.run(
        [sys.executable, "-c", code, "cluster", *arguments],
        cwd=ROOT,
        env={**clean_environment(), "BIGBATCH_HOME": str(home / ".bigbatch")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_queue_shows_them_with_their_study(home: Path) -> None:
    rows = {line.split()[0]: line.split() for line in bigbatch(home, "queue", "--all").splitlines()}
    assert {SEARCH, CHAINED, SUCCESSOR, ENDED} <= set(rows)
    study = json.loads((home / "j" / "runs" / "s" / "study.json").read_text())
    assert "s" in rows[SEARCH] and f"0/{study['trials']}" in rows[SEARCH] and "requeueing" in rows[SEARCH]
    assert "ended" in rows[ENDED]


def test_their_logs_are_shown(home: Path) -> None:
    assert "SAID BY THE DRIVER" in bigbatch(home, "logs", ENDED)
    assert "epoch 2/300" in bigbatch(home, "logs", SEARCH)
    node = json.loads((home / ".bigbatch" / "jobs" / SEARCH / "job.json").read_text())["nodes"][0]
    assert bigbatch(home, "logs", SEARCH, "--node", node)


def test_their_records_are_read(home: Path) -> None:
    env = {"BIGBATCH_HOME": str(home / ".bigbatch")}
    found = {one.job_id: one for one in job_record.all_records(env)}
    assert found[SEARCH].state == "requeueing" and found[SEARCH].study_folder == str(home / "j" / "runs" / "s")
    assert found[CHAINED].successor == SUCCESSOR and found[ENDED].state == "ended"


def test_no_secret_is_stored(home: Path) -> None:
    assert not [path for path in home.rglob("*") if path.name in ("token", "tls") or path.suffix in (".key", ".pem")]


def stored_script(stored: Path, tmp_path: Path, name: str) -> Path:
    """A batch script as Slurm has it of a job that was submitted before, with the paths of this machine."""
    text = (stored / "scripts" / f"{name}.txt").read_text()
    names = {
        "/home/alice/bigbatch": str(ROOT),
        "/home/alice/.bigbatch": str(tmp_path / "home"),
        "=python3": f"={sys.executable}",
    }
    for old, new in names.items():
        text = text.replace(old, new)
    script = tmp_path / "slurm_script"
    script.write_text(text)
    return script


ANSWER = f"JobState=RUNNING\n   Command={ROOT}/cluster/ray_head_workers.slurm --space smoke"
"""What Slurm says of a job of `sbatch cluster/ray_head_workers.slurm` from the clone."""
PYTHON = {"BIGBATCH_PYTHON": sys.executable}
SCRIPTS: dict[str, tuple[str, ...]] = {"ray_head_workers": SAYS, "submit-command": ()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_older_batch_script_starts_the_job_of_today(stored: Path, tmp_path: Path, name: str) -> None:
    """With stand-ins for Slurm and Ray; in a real Slurm in tests/slurm/test_older_scripts.py."""
    script = stored_script(stored, tmp_path, name)
    job = StandInJob(tmp_path, "7", *SCRIPTS[name], answer=ANSWER, command=("bash", script), **PYTHON)
    assert job.end() == 0, job.log
    assert "SAID BY THE DRIVER" in job.log and "→ ended" in job.log
    assert json.loads((tmp_path / "home" / "jobs" / "7" / "job.json").read_text())["state"] == "ended"


def test_an_older_script_that_lends_nodes_finds_the_job_of_today(stored: Path, tmp_path: Path) -> None:
    script = stored_script(stored, tmp_path, "ray_attach")
    job = StandInJob(tmp_path, "9", "nothing", answer=ANSWER, command=("bash", script), **PYTHON)
    assert job.end() == 2 and "write one job id; got 'nothing'" in job.log, job.log


def test_an_older_script_of_a_container_finds_its_interpreter(stored: Path, tmp_path: Path) -> None:
    script = stored_script(stored, tmp_path, "submit-container").read_text()
    interpreter = Path(next(line for line in script.splitlines() if "BIGBATCH_PYTHON=" in line).partition("=")[2])
    assert interpreter.is_relative_to(ROOT) and os.access(interpreter, os.X_OK)


@pytest.mark.parametrize("job_id", [SEARCH, CHAINED])
def test_a_job_that_was_requeued_goes_on_from_its_older_record(home: Path, tmp_path: Path, job_id: str) -> None:
    """A chained job's successor reads the record of the one before it; a requeued one its own."""
    shutil.copytree(home / ".bigbatch" / "jobs" / job_id, tmp_path / "home" / "jobs" / job_id)
    for path in (tmp_path / "home", tmp_path / "home" / "jobs"):
        path.chmod(0o700)
    chained = {"BIGBATCH_PREDECESSOR": job_id}
    own, env = (job_id, {"SLURM_RESTART_COUNT": "1"}) if job_id == SEARCH else ("5", chained)
    before = json.loads((tmp_path / "home" / "jobs" / job_id / "job.json").read_text())
    job = StandInJob(tmp_path, own, *SAYS, **env)
    assert job.end() == 0, job.log
    assert "SAID BY THE DRIVER" in job.log
    after = json.loads((tmp_path / "home" / "jobs" / own / "job.json").read_text())
    assert after["restarts"] == before["restarts"] + 1, "counted on from the older record"
