"""A search is checked before it is submitted: in the job's environment where that runs here, else without."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bigbatch import submit
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.submission import search_check
from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan import submission_check
from bigbatch.tune.plan.options import SearchOptions
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

    def run(*words: object, python: str | None = None, job: str | None = sys.executable, **env: str):
        """``python`` runs the command, else this process; ``job`` is the job's interpreter."""
        more = {"PATH": f"{tools}:{os.environ['PATH']}", "BIGBATCH_HOME": str(tmp_path / "home")}
        more |= {"PYTHONPATH": str(ROOT / "src"), "XDG_CONFIG_HOME": "/nowhere", **env}
        line = ("submit", "--cpus-per-node", "2", *(["--python", job] if job else []), *words)
        with pytest.MonkeyPatch.context() as bare:
            for name in [name for name in os.environ if name.startswith(("BIGBATCH_", "SBATCH_", "XDG_"))]:
                bare.delenv(name)
            if python is None:
                return commands.run("cluster", *line, cwd=tmp_path, main=main, **more)
            return commands.run_process(python, "-m", "bigbatch", "cluster", *line, cwd=tmp_path, **more)

    return run


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python without any package, as login nodes have it."""
    venv.create(tmp_path / "bare", with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


def is_refused(done: subprocess.CompletedProcess[str], folder: Path, expected: str) -> None:
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 1 and expected in lines[0], done.stderr
    assert not (folder / "submitted").exists()


REFUSED = {
    "space file missing": (("--space", "/nosuch.py"), "'/nosuch.py:space'. Check the path"),
    "function missing": (("--space", "mine.py:space"), "'space'"),
    "data missing": (("--data", "/nosuch"), "/nosuch"),
    "no trials": (("--trials", "0"), "--trials must be at least 1; got 0"),
    "sampler": (("--strategy", "bayes"), "--strategy must be one of auto"),
    "study to resume": (("--resume", "--study", "first"), "a study is a folder with study.json; there is"),
    "study to learn from": (("--warm-start", "runs/nothing"), "'runs/nothing', which holds no study.json"),
    "value of a key": (("--set", "momentum=1.5"), "momentum"),
    "network": (("--model", "resnet51"), "resnet50"),
}
"""Search options and what is said of them."""
WITH_A_WAY_ON = ("space file missing", "data missing", "study to learn from")


@pytest.mark.parametrize(("name", "dry"), [("space file missing", True), ("no trials", False)])
def test_a_search_that_cannot_be_is_not_submitted(name, dry, site, tmp_path):
    options, expected = REFUSED[name]
    done = site(*(["--dry-run"] if dry else []), *options)
    is_refused(done, tmp_path, expected)
    assert not (tmp_path / "home").exists(), "nothing is left behind"
    assert ("write --no-check" in done.stderr) == (name in WITH_A_WAY_ON)


def test_no_check_submits_what_only_the_nodes_can_judge(site, tmp_path):
    done = site("--no-check", "--data", "/local/of/the/nodes")
    assert done.returncode == 0 and (tmp_path / "submitted").exists() and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--sbatch=--chdir={own}", "--space", "smoke"), "the work folder"),
        (("--sbatch=--chdir={own}", "--", "true"), "the work folder"),
        (("--data", "{own}"), "--data"),
        (("--output", "{own}"), "--output"),
    ],
)
def test_a_folder_that_only_the_login_node_sees_is_refused(words, what, site, tmp_path):
    """In memory, as /tmp often is; the home, on another file system, is shared."""
    sinfo = "#!/bin/sh\ncase $* in *%n*) echo {}; echo n2;; *) exit 1;; esac\n"
    (tmp_path / "bin" / "sinfo").write_text(sinfo.format("n1"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as own:
        words = [word.format(own=own) for word in words]
        done = site(*words)
        is_refused(done, tmp_path, f"{what} must be on a file system that the nodes see; got ")
        assert "--no-check" in done.stderr and site("--no-check", *words).returncode == 0
        (tmp_path / "bin" / "sinfo").write_text(sinfo.format(os.uname().nodename).replace("; echo n2", ""))
        if words[-1] == "true":
            assert site(*words).returncode == 0, "this machine is the only node"


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


@pytest.mark.parametrize("url", ["rubbish", "nosuchdb://me:secret@host/x"])
def test_a_database_that_cannot_be_is_refused_without_its_password(url):
    with pytest.raises(ConfigError, match="--storage must be a database's URL") as caught:
        submission_check.check_whole_plan(SearchOptions(space="smoke", storage=url))
    assert url.replace("secret", "***") in str(caught.value)


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

OF_OTHER_NODES = "echo 'cannot execute on this architecture' >&2; exit 126"


def test_an_interpreter_that_does_not_run_here_leaves_the_checks_that_need_none(site, tmp_path):
    stub = program(tmp_path / "python", OF_OTHER_NODES)
    done = site("--dry-run", "--space", "mine.py:mine", job=str(stub))
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 1, done.stderr
    assert lines[0].endswith("but for its options: the job's environment (cannot execute on this architecture)")
    is_refused(site("--trials", "0", job=str(stub)), tmp_path, "--trials must be at least 1")


def test_an_interpreter_without_packages_does_not_run_the_users_space(site, tmp_path, bare_python):
    """As where modules bring torch on the nodes alone: a space that imports it is not refused for that."""
    (tmp_path / "mine.py").write_text("import torch\n" + OWN)
    done = site("--space", "mine.py:mine", job=bare_python)
    assert done.returncode == 0 and (tmp_path / "submitted").exists(), done.stderr
    assert "its Python has no ray, optuna, torch" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_login_nodes_bare_python_checks_what_it_can(site, tmp_path, bare_python):
    image = tmp_path / "image.sif"
    image.touch()
    # No apptainer.
    bare = partial(site, "--container", image, python=bare_python, job=None, PATH=f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "mine.py").write_text("import torch\n" + OWN)
    options, expected = REFUSED["sampler"]
    is_refused(bare(*options), tmp_path, expected)
    done = bare("--space", "mine.py:mine", "--model", "convnext_tiny", "--time-budget", "1h30m")
    assert done.returncode == 0 and (tmp_path / "submitted").exists(), done.stderr
    assert "neither apptainer nor singularity" in done.stderr and len(done.stderr.splitlines()) == 1


# The limits of a check


def test_a_check_that_hangs_is_ended_with_all_that_it_started_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(search_check, "CHECK_LIMIT_S", 1.0)
    mark = f"hangs-{os.getpid()}-{time.time_ns()}"
    script = textwrap.dedent(f"""\
        #!/bin/bash
        bash -c 'sleep 600 & wait' {mark} &
        wait
    """)
    note = search_check.check_search(("--space", "smoke"), script, str(tmp_path), dict(os.environ))
    assert note is not None and note.endswith("(no answer within 1 s)")
    wait_gone(mark)


def test_a_check_that_cannot_even_begin_lets_the_search_pass_and_says_so(tmp_path):
    note = search_check.check_search((), "#!/bin/bash\n", str(tmp_path / "nowhere"), dict(os.environ))
    assert note is not None and note.startswith("not checked on this machine")
