"""A folder of the user's with ``torch.py``, ``tune.py``, ``cluster.py`` … in it: refused in one line, or ignored.

A search in such a folder: tests/test_wheel.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import run_process
from helpers.paths import ROOT, TUNE

OWN = ("tune", "search_spaces", "train_loop", "cluster")
# In place of installing: the same import as the console script's, with what PYTHONPATH adds to its path.
CONSOLE = (
    "import sys; sys.path.remove(''); sys.argv[0] = 'bigbatch'; "
    "from bigbatch.command import console; sys.exit(console())"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every name that could be mixed up is the user's."""
    for name in (*OWN, "torch", "numpy", "optuna", "secrets", "random"):
        (tmp_path / f"{name}.py").write_text("open('the-users-file-ran', 'w')\n")
    for name in ("wandb", "ray"):  # W&B makes one of its own
        (tmp_path / name).mkdir()
    return tmp_path


def python(*arguments: object, cwd: Path, path: str = str(ROOT / "src")) -> subprocess.CompletedProcess[str]:
    return run_process(sys.executable, *arguments, cwd=cwd, PYTHONPATH=path)


def keep(folder: Path, *names: str) -> None:
    """Remove all files but those of ``names``."""
    for path in folder.glob("*.py"):
        if path.stem not in names:
            path.unlink()


SRC = str(ROOT / "src")
RUN = ("-m", "bigbatch.tune.run", "--dry-run")


@pytest.mark.parametrize(
    ("name", "arguments", "path", "code", "words"),
    [
        *((name, RUN, SRC, 2, "Rename it") for name in ("torch", "numpy", "optuna")),
        # An empty entry of PYTHONPATH, as PYTHONPATH=$PYTHONPATH:/more leaves it, is the current folder.
        ("torch", ("-c", CONSOLE, "tune", "--dry-run"), os.pathsep.join(["", SRC]), 2, "Rename it"),
        ("torch", ("-c", "import bigbatch.tune"), SRC, 1, "the library 'torch' must be"),  # as a notebook does
    ],
    ids=["torch", "numpy", "optuna", "console", "notebook"],
)
def test_who_would_import_the_users_file_refuses_in_one_line(name, arguments, path, code, words, folder):
    keep(folder, name)
    done = python(*arguments, cwd=folder, path=path)
    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert str(folder / f"{name}.py") in last and words in last and (code == 1 or done.stderr.count("\n") == 1)
    assert not (folder / "the-users-file-ran").exists()


def test_files_named_like_our_packages_are_no_matter(folder):
    """Installed there is one name, ``bigbatch``; the current folder may hold the four others."""
    keep(folder, *OWN)
    done = python("-m", "bigbatch", "tune", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = python("-c", "from bigbatch import submit; from bigbatch.train_loop.optim import LARS", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "the-users-file-ran").exists()


def test_where_python_does_not_look_into_the_folder_it_may_hold_anything(folder):
    for arguments in ((TUNE, "--dry-run"), ("-c", CONSOLE, "tune", "--dry-run")):
        done = python(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    assert not (folder / "the-users-file-ran").exists()


def test_folders_that_hide_nothing_are_no_reason_to_refuse(folder):
    keep(folder)
    (folder / "sklearn").mkdir()  # data of that name, no package
    done = python("-m", "bigbatch.tune.run", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_doctor_asks_its_nodes_from_such_a_folder_too(folder):
    (folder / "shared").mkdir()
    done = python("-c", CONSOLE, "cluster", "doctor", "--shared", "shared", cwd=folder)
    assert "nodes answer" in done.stdout and "the-users-file-ran" not in os.listdir(folder), done.stdout + done.stderr
    assert "FAIL nodes answer" not in " ".join(done.stdout.split()), done.stdout
