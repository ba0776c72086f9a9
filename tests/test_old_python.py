"""A Python before 3.11, as login nodes have it, learns in one line what to do: from each file that a user starts."""

import ast
import subprocess
import sys

import pytest

from helpers.paths import ROOT
from helpers.processes import clean_environment, program

STAND_IN = "import sys\nsys.version_info, sys.version = (3, 9, 18, 'final', 0), '3.9.18 (a stand-in)'\n"
BATCH_SCRIPT = ROOT / "cluster" / "ray_head_workers.slurm"
STARTED = {
    "a clone's folder": ("src/bigbatch", "cluster", "queue"),
    "tune/run.py": ("tune/run.py", "--space", "smoke"),
    "train_loop/run.py": ("train_loop/run.py", "--recipe", "digits"),
    "python -m bigbatch": ("-m", "bigbatch", "studies"),
    "a node's step": ("-m", "bigbatch.cluster.node"),
}
READ_FIRST = [
    *("src/bigbatch/__init__.py", "src/bigbatch/__main__.py", "src/bigbatch/base/root.py"),
    *("tune/run.py", "train_loop/run.py"),
]
"""What Python reads before the line is printed."""
ON_LOGIN_NODES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "cluster").rglob("*.py"))


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This Python under an old version's name."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "sitecustomize.py").write_text(STAND_IN)
    return str(program(folder / "python3", f'PYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"'))


@pytest.mark.parametrize("name", STARTED)
def test_an_old_python_learns_in_one_line_what_to_do(name: str, old_python: str) -> None:
    is_refused([old_python, *STARTED[name]])


def test_a_batch_script_that_finds_an_old_python_says_so(old_python: str) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "BIGBATCH_ROOT": str(ROOT), "BIGBATCH_PYTHON": old_python}
    is_refused(["bash", str(BATCH_SCRIPT), "--space", "smoke"], **env)


def is_refused(command: list[str], **more: str) -> None:
    env = {**clean_environment(), "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", **more}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in ("Python must be 3.11 or newer; got 3.", "Load a module", "BIGBATCH_PYTHON"):
        assert word in done.stderr


@pytest.mark.parametrize(
    ("name", "minor"), [*((name, 6) for name in READ_FIRST), *((name, 9) for name in ON_LOGIN_NODES)]
)
def test_what_an_old_python_reads_keeps_to_it(name: str, minor: int) -> None:
    tree = ast.parse((ROOT / name).read_text(), name, feature_version=(3, minor))
    futures = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert minor > 6 or futures == [], "Python 3.6 does not know `from __future__ import annotations`"
