"""Slow tests that start Ray run one after the other, those in a virtual Slurm too, and others beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT
from helpers.processes import clean_environment

TESTS = """
import os
from pathlib import Path
import pytest

def note(kind, number):
    Path(__file__).with_name(f"{kind}-{number}").write_text(os.environ["PYTEST_XDIST_WORKER"])

@pytest.mark.parametrize("number", range(6))
@pytest.mark.slow
def test_ray(number):
    note("ray", number)

@pytest.mark.parametrize("number", range(6))
@pytest.mark.slow
@pytest.mark.slurm
def test_slurm(number):
    note("slurm", number)

@pytest.mark.parametrize("number", range(6))
@pytest.mark.slow
@pytest.mark.without_ray
def test_other(number):
    note("other", number)
"""


def test_a_group_has_one_worker(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_here.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    env = {**clean_environment(), "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    workers = {kind: {file.read_text() for file in tmp_path.glob(f"{kind}-*")} for kind in ("ray", "slurm", "other")}
    assert len(workers["ray"]) == 1 and len(workers["slurm"]) == 1
    assert workers["ray"] != workers["slurm"], "the two groups run side by side"
