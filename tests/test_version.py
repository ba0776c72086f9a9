"""``bigbatch --version``: version and commit."""

import re
import subprocess
import sys
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
