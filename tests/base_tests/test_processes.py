"""Processes that are ended with all that they have started."""

import contextlib
import os
import re
import resource
import subprocess
import sys

import pytest

from bigbatch.base import processes
from helpers.paths import ROOT


def test_only_own_descendants_are_ended_also_those_that_left_their_group():
    start = "import subprocess, sys; subprocess.Popen(['sleep', '301'], start_new_session=True); sys.exit()"
    main = f"""
import subprocess, sys
from bigbatch.base import processes
processes.adopt_orphans()
subprocess.run([sys.executable, "-c", {start!r}])
assert len(processes.descendants({os.getpid()})) >= 2
below = processes.descendants(__import__("os").getpid())
assert len(below) == 1, below
stubborn = subprocess.Popen(["bash", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=subprocess.PIPE)
stubborn.stdout.readline()  # from now on it ignores the signal
print(processes.end_descendants(grace_s=0.5) == [stubborn.pid], processes.descendants(__import__("os").getpid()))
"""
    bystander = subprocess.Popen(["sleep", "302"])
    done = subprocess.run([sys.executable, "-c", main], cwd=ROOT / "src", capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("[]"), done.stderr
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(("soft", "hard", "refused"), [(120, 120, True), (120, 100_000, False), (-1, -1, False)])
def test_a_limit_of_processes_that_ray_exceeds_is_raised_or_said_in_one_line(soft, hard, refused, monkeypatch):
    """``ulimit -u 120`` in the shell in which a job is submitted; root, as whom tests may run, has no such limit."""
    limits = [(soft, hard)]
    files = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(processes.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        processes.resource, "getrlimit", lambda which: limits[-1] if which == resource.RLIMIT_NPROC else files
    )
    monkeypatch.setattr(processes.resource, "setrlimit", lambda which, new: limits.append(new))
    said = pytest.raises(OSError, match=r"at least 300 processes .* got 120 \(ulimit -u\)\. Raise it in the shell")
    with said if refused else contextlib.nullcontext() as error:
        processes.check_limits(processes.HEAD_THREADS)
    assert limits[-1] == (hard, hard) and (not refused or "\n" not in str(error.value))


@pytest.mark.parametrize(
    ("hard", "said"), [(64, r"OSError: Ray needs .* 128 open .* got 64 \(ulimit -n\)\. .*"), (300, "300")]
)
def test_a_limit_of_open_files_is_raised_or_said_in_one_line(hard, said):
    """With ``ulimit -n 64`` Ray's start would wait for minutes without a word."""
    code = (
        "import resource; from bigbatch.base.processes import check_limits; check_limits(1); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    shell = f"ulimit -Sn 64; ulimit -Hn {hard}; exec {sys.executable} -c '{code}'"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT / "src", capture_output=True, text=True, timeout=120)
    assert re.fullmatch(said, (done.stdout + done.stderr).splitlines()[-1])
