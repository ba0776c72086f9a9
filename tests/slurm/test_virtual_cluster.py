"""The virtual cluster does what the tests that use it rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import psutil
import pytest

from helpers.waiting import wait_until
from virtual_cluster import PLACE, PREFIX, VirtualCluster
from virtual_config import FREEZER

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SLEEP = "#!/bin/bash\nexec sleep 300\n"


def batch(text: str) -> str:
    return "#!/bin/bash\n" + textwrap.dedent(text)


def leftovers(name: str) -> list[str]:
    """What of a cluster can be seen outside of it."""
    found = [str(path) for folder in (PLACE, FREEZER) for path in folder.glob(name)]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    for process in psutil.process_iter(["cmdline"]):
        if name in " ".join(process.info["cmdline"] or ()):
            found.append(str(process.info))
    return found


def test_trees_in_closed_folders_are_reachable(slurm_machine: None, tmp_path: Path) -> None:
    """As in CI: a virtual environment in a folder of mktemp's, a clone that is closed itself, links to both."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    venv.create(closed / "environment", symlinks=True, with_pip=False)
    clone = closed / "clone"
    (clone / "package").mkdir(parents=True)
    (clone / "package" / "file").write_text("text")
    clone.chmod(0o700)
    (tmp_path / "link").symlink_to(clone)
    before = {path: path.stat().st_mode for path in (closed, clone, Path("/root"), tmp_path)}
    trees = [closed / "environment", clone, clone / "package", tmp_path / "link"]
    with VirtualCluster(nodes=1, gpus=0, readable=trees) as vc:
        for place in ("ctl", "n1"):
            python = (closed / "environment" / "bin" / "python", "-c", "import sys; print(sys.prefix)")
            assert vc.run(place, *python, user="alice").stdout.strip() == str(closed / "environment")
            for path in (clone, tmp_path / "link"):
                assert vc.run(place, "cat", path / "package" / "file", user="bob").stdout == "text"
            assert vc.run(place, "touch", clone / "package" / "new", check=False).returncode != 0
    assert {path: path.stat().st_mode for path in before} == before
    assert (clone / "package" / "file").read_text() == "text"


def test_down_leaves_nothing(slurm_machine: None) -> None:
    devices = sorted(os.listdir("/sys/class/net"))
    vc = VirtualCluster(nodes=2).up()
    name = vc.shared.name
    assert name.startswith(PREFIX)
    vc.wait_state(vc.sbatch("alice", "-N2", script=SLEEP), "RUNNING")
    vc.suspend("n1")
    assert sorted(os.listdir("/sys/class/net")) == devices
    vc.down()
    assert leftovers(name) == []
    vc.down()


def test_the_cluster_ends_with_the_process_that_started_it(slurm_machine: None) -> None:
    code = "from virtual_cluster import VirtualCluster as V; print(V(nodes=1).up().shared, flush=True); input()"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdin=pipe, stdout=pipe, text=True) as starter:
        name = Path(starter.stdout.readline().strip()).name
        assert leftovers(name)
        starter.kill()
    wait_until(lambda: leftovers(name) == [], lambda: str(leftovers(name)), 120)
