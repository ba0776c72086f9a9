"""Processes that are ended with all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys

from helpers.paths import ROOT


def test_only_own_descendants_are_ended_also_those_that_left_their_group():
    start = "import subprocess, sys; subprocess.Popen(['sleep', '301'], start_new_session=True); sys.exit()"
    main = f"""
import subprocess, sys
from bigbatch.cluster.host import processes
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
