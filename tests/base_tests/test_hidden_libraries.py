"""A folder of the user's with ``torch.py``, ``tune.py``, ``cluster.py`` … in it: refused in one line, or ignored."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import run_process
from helpers.paths import ROOT, TUNE
from helpers.spaces import TINY_SPACE

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, installed into a folder of its own."""
    work = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in files.stdout.split("\n"):  # a copy: building leaves its own files behind
        if name.startswith((*OWN, "src", "pyproject", "README", "LICENSE")) and (ROOT / name).exists():
            (work / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / "source" / name, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([*pip, "wheel", *offline, "-w", str(work), str(work / "source")], check=True, timeout=240)
    wheel = next(work.glob("*.whl"))
    subprocess.run([*pip, "install", *offline, "--target", str(work / "site"), str(wheel)], check=True, timeout=240)
    return work / "site"


@pytest.mark.slow
def test_a_search_from_such_a_folder_trains_with_the_packages_of_its_driver(folder, installed, tiny_images):
    """Installed as a wheel, with a space file called tune.py and a sibling that it imports."""
    space = TINY_SPACE.format(epochs="a few").replace("1e-3, 0.1", "*RATES")
    (folder / "tune.py").write_text(f"from mylib import RATES\n{space}")
    (folder / "mylib.py").write_text("RATES = 1e-3, 0.1\n")
    worker = installed / "bigbatch" / "train_loop" / "launch" / "ray_worker.py"
    if "proof" not in worker.read_text():
        worker.write_text(f"{worker.read_text()}\nopen({str(folder / 'proof')!r}, 'a').write(f'{{os.getpid()}}\\n')\n")
    arguments = ("--space", "tune.py", "--data", tiny_images, "--model", "shufflenet_v2_x0_5", "--set", "image_size=16")
    more = ("--trials", 1, "--max-epochs", 1, "--study", "s")
    done = python(installed / "bin" / "bigbatch", "tune", *arguments, *more, cwd=folder, path=str(installed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 trials ran to their end" in done.stdout
    assert not (folder / "the-users-file-ran").exists()
    assert len(set((folder / "proof").read_text().split())) >= 2, "driver and worker load the installed package"
