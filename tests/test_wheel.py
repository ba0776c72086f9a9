"""A wheel, built of a source distribution and installed outside of the repository, is the whole of BigBatch."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.paths import ROOT
from helpers.processes import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
USERS = 'WHOSE = "the user\'s"\n'


@dataclass(frozen=True)
class Installed:
    """An environment with nothing but the wheel, and the packages of the tests' own below it."""

    wheel: Path
    sdist: Path
    python: Path
    project: Path
    """A user's folder, with a ``tune/`` and a ``cluster/`` of the user's own."""

    def run(self, *words: object, below: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the user's folder, or in one ``below`` it."""
        env = {**clean_environment(), "BIGBATCH_HOME": str(self.project / "home"), "PYTHONNOUSERSITE": "1"}
        line = [str(self.python.parent / str(words[0])), *map(str, words[1:])]
        return subprocess.run(line, cwd=self.project / below, env=env, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    copy_tracked_files(folder / "source")
    call(sys.executable, "-c", SDIST, str(folder), cwd=folder / "source")
    (sdist,) = folder.glob("bigbatch-*.tar.gz")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist), cwd=folder)
    (wheel,) = folder.glob("bigbatch-*.whl")
    call(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    python = folder / "venv" / "bin" / "python"
    call(*pip, "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel), cwd=folder)
    (libraries,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # Of a folder that a .pth file adds, no .pth files are read: the clone that is installed there stays out.
    (libraries / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for name in ("tune", "cluster"):
        (folder / "project" / name).mkdir(parents=True)
        (folder / "project" / name / "__init__.py").write_text(USERS)
    return Installed(wheel, sdist, python, folder / "project")


def copy_tracked_files(target: Path) -> None:
    """The repository as a clone has it, so that building leaves nothing in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not in a git repository")
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("tests/", "benchmarks/", "docs/")) or not (ROOT / name).exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def call(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_holds_every_file_of_the_packages_and_no_other_package(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"bigbatch"}, "no top-level tune/ or cluster/"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    packages = ("cluster/", "search_spaces/", "train_loop/", "tune/")
    ours = {f"bigbatch/{name}" for name in listed if name.startswith(packages) and (ROOT / name).exists()}
    assert ours - names == set()
    assert "bigbatch/py.typed" in names
    with tarfile.open(installed.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/bigbatch/py.typed", "src/bigbatch/tune/run.py", "LICENSE"} <= inside


def test_it_shadows_no_folder_of_the_users(installed: Installed) -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import bigbatch, bigbatch.tune, tune, cluster\n"
        "print(tune.WHOSE, cluster.WHOSE, bigbatch.__file__.startswith(sys.prefix), sep='|')"
    )
    done = installed.run("python", "-c", code)
    assert done.stdout == "the user's|the user's|True\n", done.stderr


def test_it_finds_recipes_profiles_and_batch_scripts(installed: Installed) -> None:
    code = (
        "from bigbatch.train_loop.config.given import recipe_names\n"
        "from bigbatch.cluster.host.profiles import profile_paths, load_site\n"
        "print(*recipe_names(), *(load_site(path).name for path in profile_paths().values()), sep=' ')"
    )
    found = installed.run("python", "-c", code)
    recipes = {path.stem for path in (ROOT / "train_loop" / "recipes").glob("*.json")}
    sites = {path.stem for path in (ROOT / "cluster" / "sites").glob("*.toml")}
    assert set(found.stdout.split()) == recipes | sites and recipes and sites, found.stderr
    script = installed.run(
        "bigbatch", "cluster", "submit", "--site", "generic", "--cpus-per-node", "2", "--dry-run", "--no-check",
        "--space", "smoke",
    )  # fmt: skip
    root = next(line for line in script.stdout.splitlines() if line.startswith("export BIGBATCH_ROOT="))
    folder = Path(root.partition("=")[2])
    assert folder.is_relative_to(installed.python.parents[1]), script.stderr
    for name in ("ray_head_workers.slurm", "in_container.sh"):
        assert (folder / "cluster" / name).is_file()


def test_a_search_among_files_of_like_names_trains_with_the_packages_of_its_driver(
    installed: Installed, tiny_images: Path, tiny_space: Path
) -> None:
    """In a folder in which every name that could be mixed up is the user's, by a space file that imports a sibling."""
    version = installed.run("bigbatch", "--version")
    assert version.stdout.startswith("bigbatch ")
    folder = installed.project / "hides"
    for name in ("wandb", "ray"):  # W&B makes one of its own
        (folder / name).mkdir(parents=True)
    for name in ("search_spaces", "train_loop", "cluster", "torch", "numpy", "optuna", "secrets", "random"):
        (folder / f"{name}.py").write_text("open('the-users-file-ran', 'w')\n")
    space = tiny_space.read_text().replace("3e-2, 6e-2", "*RATES")
    (folder / "tune.py").write_text(f"from mylib import RATES\n{space}")
    (folder / "mylib.py").write_text("RATES = 3e-2, 6e-2\n")
    (worker,) = installed.python.parents[1].glob("lib/python*/site-packages/bigbatch/train_loop/launch/ray_worker.py")
    proof = f"open({str(folder / 'proof')!r}, 'a').write(f'{{os.getpid()}}\\n')"
    worker.write_text(f"{worker.read_text()}\n{proof}\n")
    words = ("--space", "tune.py", "--data", tiny_images, "--trials", 1, "--max-epochs", 1, "--confirm", "none")
    small = ("--model", "shufflenet_v2_x0_5", "--set", "image_size=16", "--study", "s")
    done = installed.run("bigbatch", "tune", *words, *small, below="hides")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 trials ran to their end" in done.stdout
    runs = folder / "runs" / "s"
    assert (runs / "best.json").exists() and (runs / "report.html").stat().st_size > 10_000
    assert not (folder / "the-users-file-ran").exists()
    assert len(set((folder / "proof").read_text().split())) >= 2, "driver and worker load the installed package"
