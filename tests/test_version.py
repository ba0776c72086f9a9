"""``bigbatch --version``: version and commit. ``CITATION.cff`` says of the software what its metadata says."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bigbatch
from helpers.paths import ROOT

VERSION = re.escape(bigbatch.__version__)


def version(*prefix: str, cwd: Path) -> str:
    done = subprocess.run([*prefix, "--version"], cwd=cwd, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_clone_says_its_commit(tmp_path: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not head:
        pytest.skip("not in a git repository")
    printed = version(sys.executable, "-m", "bigbatch", cwd=tmp_path)
    said = re.fullmatch(rf"bigbatch {VERSION} \(commit ([0-9a-f]{{12}})(-dirty)?\)\n", printed)
    assert said is not None and head.startswith(said[1])


def test_an_installed_package_in_the_repository_of_another_says_no_commit(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "bigbatch", tmp_path / "bigbatch", ignore=shutil.ignore_patterns("__pycache__"))
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-m1"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    code = "import sys; sys.path.insert(0, '.'); from bigbatch.command import console; sys.exit(console())"
    assert version(sys.executable, "-I", "-c", code, cwd=tmp_path) == f"bigbatch {bigbatch.__version__}\n"


def test_the_citation_agrees_with_the_package() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format demands
    assert "version" not in citation  # the version is in one place, bigbatch.__version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
