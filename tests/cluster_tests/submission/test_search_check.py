"""A search is checked before it is submitted: in the job's environment where that runs here."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from bigbatch import submit
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.submission import search_check
from bigbatch.command import main
from helpers import commands
from helpers.paths import ROOT
from helpers.processes import program, wait_gone

OWN = "def mine(trial, workload):\n    return workload.config({'peak_lr': trial.suggest_float('peak_lr', 0.1, 1)})\n"


@pytest.fixture
def site(tmp_path: Path):
    """A login node with Slurm, on which ``bigbatch cluster submit`` is run; ``sbatch`` notes that it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, script in (("sbatch", f"touch {tmp_path}/submitted; echo 77"), ("sinfo", "exit 1")):
        program(tools / name, script)
    (tmp_path / "mine.py").write_text(OWN)

    def run(*words: object, job: str = sys.executable, **env: str):
        """``job``: the job's interpreter."""
        more = {"PATH": f"{tools}:{os.environ['PATH']}", "BIGBATCH_HOME": str(tmp_path / "home")}
        more |= {"PYTHONPATH": str(ROOT / "src"), "XDG_CONFIG_HOME": "/nowhere", **env}
        line = ("submit", "--cpus-per-node", "2", "--python", job, *words)
        with pytest.MonkeyPatch.context() as bare:
            for name in [name for name in os.environ if name.startswith(("BIGBATCH_", "SBATCH_", "XDG_"))]:
                bare.delenv(name)
            return commands.run("cluster", *line, cwd=tmp_path, main=main, **more)

    return run


def is_refused(done: subprocess.CompletedProcess[str], folder: Path, expected: str) -> None:
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 1 and expected in lines[0], done.stderr
    assert not (folder / "submitted").exists()


@pytest.mark.parametrize(
    ("options", "expected", "path"),
    [
        (("--dry-run", "--space", "/nosuch.py"), "'/nosuch.py:space'. Check the path", True),
        (("--trials", "0"), "--trials must be at least 1; got 0", False),
        (("--storage", "nosuchdb://me:secret@host/x"), "--storage must be a database's URL", True),
    ],
)
def test_a_search_that_cannot_be_is_not_submitted(options, expected, path, site, tmp_path):
    done = site(*options)
    is_refused(done, tmp_path, expected)
    assert not (tmp_path / "home").exists(), "nothing is left behind"
    assert ("write --no-check" in done.stderr) is path and "secret" not in done.stderr


def test_no_check_submits_what_only_the_nodes_can_judge(site, tmp_path):
    done = site("--no-check", "--data", "/local/of/the/nodes")
    assert done.returncode == 0 and (tmp_path / "submitted").exists() and done.stderr == ""


def test_a_good_search_is_submitted_without_a_word_and_checked_in_the_jobs_environment(site, tmp_path):
    """The space is run there: it needs what the prelude sets. No machine is looked at: this one lacks the workers."""
    (tmp_path / "prelude.sh").write_text("export NEEDED=$BIGBATCH_CHECK\n")
    (tmp_path / "mine.py").write_text("import os\nimport torch\nos.environ['NEEDED']\n" + OWN)
    words = ("--nodes", "64", "--workers", "128", "--space", "mine.py:mine")
    done = site("--prelude", "prelude.sh", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "Job 77 is submitted" in done.stdout and (tmp_path / "submitted").exists()
    (tmp_path / "submitted").unlink()
    without = site(*words)
    assert without.returncode == 2 and "KeyError: 'NEEDED'" in without.stderr and "--no-check" in without.stderr
    assert not (tmp_path / "submitted").exists()


ON_GPUS = "def mine(trial, workload):\n    assert workload.accelerator == 'cuda'\n    return workload.config()\n"


def test_it_is_judged_for_the_nodes_that_are_asked_for(site, tmp_path):
    (tmp_path / "mine.py").write_text(ON_GPUS)
    done = site("--dry-run", "--space", "mine.py:mine", "--gpus-per-node", "2")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    is_refused(site("--dry-run", "--space", "mine.py:mine"), tmp_path, "raised AssertionError")
    is_refused(site("--dry-run", "--set", "sync_bn=true"), tmp_path, "model.sync_bn needs GPUs")


def test_from_python_it_is_the_same(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    wishes: dict[str, Any] = {"site": "generic", "cpus_per_node": 1, "python": sys.executable, "dry_run": True}
    with pytest.raises(InputError, match="--max-epochs must be at least 1; got 0"):
        submit("--max-epochs", "0", **wishes)
    with pytest.raises(InputError, match="no such option; got '--trails'. Did you mean --trials"):
        submit("--trails", "3", **wishes)
    assert "--max-epochs 0" in submit("--max-epochs", "0", check=False, **wishes)
    assert capfd.readouterr().err == ""


# Where the job's environment does not run on this machine


@pytest.mark.parametrize(
    ("stub", "why"),
    [
        ("echo 'cannot execute on this architecture' >&2; exit 126", "cannot execute on this architecture"),
        (f'exec {sys._base_executable} -S "$@"', "a package that BigBatch needs is missing"),  # type: ignore[attr-defined]
    ],
)
def test_an_interpreter_that_does_not_run_here_leaves_the_search_unchecked_and_says_so(stub, why, site, tmp_path):
    done = site("--space", "mine.py:mine", job=str(program(tmp_path / "python", stub)))
    assert done.returncode == 0 and (tmp_path / "submitted").exists() and len(done.stderr.splitlines()) == 1
    assert f"the search is not checked: {why}" in done.stderr


def test_a_module_that_this_machine_lacks_is_said_of_a_search_that_is_checked_without_it(site, tmp_path):
    (tmp_path / "own.toml").write_text('name = "own"\n[environment]\nmodules = ["python", "cuda/13"]\n')
    (tmp_path / ".bash_profile").write_text("module() { [ $2 = python ]; }\n")
    words = ("--dry-run", "--site", "own.toml", "--space", "mine.py:mine")
    done = site(*words, HOME=str(tmp_path))
    assert done.returncode == 0 and "\nmodule load cuda/13\n" in done.stdout
    assert done.stderr == f"bigbatch cluster: {search_check.LACKS_MODULES}\n"
    (tmp_path / ".bash_profile").write_text("module() { true; }\n")
    assert site(*words, HOME=str(tmp_path)).stderr == ""


# The limits of a check


def test_a_check_that_hangs_is_ended_with_all_that_it_started_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(search_check, "CHECK_LIMIT_S", 1.0)
    mark = f"hangs-{os.getpid()}-{time.time_ns()}"
    script = textwrap.dedent(f"""\
        #!/bin/bash
        bash -c 'sleep 600 & wait' {mark} &
        wait
    """)
    note = search_check.check_search(script, str(tmp_path), dict(os.environ))
    assert note == "the search is not checked: no answer within 1 s"
    wait_gone(mark)


def test_a_check_that_cannot_even_begin_lets_the_search_pass_and_says_so(tmp_path):
    note = search_check.check_search("#!/bin/bash\n", str(tmp_path / "nowhere"), dict(os.environ))
    assert note is not None and note.startswith("the search is not checked: ")
