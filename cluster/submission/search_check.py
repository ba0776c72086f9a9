"""Check a search before submission, as ``tune --dry-run`` does, in the environment of its job.

The batch script itself runs on the login node with ``--check-search``, up to the point where the job would begin.
So the check has the job's modules, site commands, prelude, interpreter and container. Where that environment does not
work here, a line says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bigbatch.base.root import ROOT
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.cluster.node.ray_commands import ray_python

ARGUMENT = "--check-search"
"""First argument of ``ray_head_workers.slurm``: only check the search."""
CHECK_LIMIT_S = 120.0
"""How long the job's environment may take to answer: a first import from a shared file system is slow."""
CHECK_VARIABLE = "BIGBATCH_CHECK"
"""This variable is 1 while a prelude or site commands run for the check. They can then skip steps for nodes."""
LACKS_MODULES = "a `module load` of the job fails on this machine: the search is checked without that module"
REFUSES = "tune/run.py: error: "
A_PATH = r"'(?!timm/|torchmetrics/)[^'\s]*(/|\.py)[^'\s]*'"


def check_search(script: str, cwd: str, env: Mapping[str, str]) -> str | None:
    """Check a search before submission. Returns a line that says why it was not checked, or not in full; or None.

    Args:
        script: the batch script, with ``--check-search`` before the job's arguments.
        cwd: the folder in which the job begins.
        env: the environment that the job inherits.

    Raises InputError with the search's own message if it is refused.
    """
    # The -l in the script's first line counts only if the script runs as a file; here it runs with -c.
    shell = [shutil.which("bash") or "/bin/bash", *(["-l"] if script.startswith("#!/bin/bash -l") else [])]
    try:
        process = subprocess.Popen(
            [*shell, "-c", script], cwd=cwd, env={**env, CHECK_VARIABLE: "1"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"the search is not checked: {error.strerror}"
    try:
        errors = process.communicate(timeout=CHECK_LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        return f"the search is not checked: no answer within {CHECK_LIMIT_S:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # also what it has started, and after Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
    line = " ".join((errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1].split())
    if not process.returncode:
        return LACKS_MODULES if LACKS_MODULES in errors else None
    if not line.startswith(REFUSES) or "a package that BigBatch needs is missing" in line:
        return f"the search is not checked: {line.removeprefix(REFUSES)}"
    advice = " If the compute nodes differ in that, write --no-check." if re.search(A_PATH, line) else ""
    raise InputError(line.removeprefix(REFUSES) + advice)


def main(argv: Sequence[str]) -> int:
    """The batch script calls this in place of the job. The process becomes the check, in the search's interpreter."""
    chosen = options.parse_job_options(argv[1:])
    for name in ("BIGBATCH_HOME", "BIGBATCH_NODE_TMP"):  # only folders that exist can be bound into a container
        if os.environ.get(name) and not os.path.isdir(os.environ[name]):
            os.environ[name] = str(ROOT)
    os.chdir(os.environ.get("BIGBATCH_CWD") or os.getcwd())
    command = [ray_python(), str(options.TUNE_SCRIPT), *chosen.arguments, "--address", "auto", "--dry-run"]
    return os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
