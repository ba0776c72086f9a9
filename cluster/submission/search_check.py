"""Check a search before submission, as ``tune --dry-run`` would, in the environment of its job.

The batch script itself runs on the login node with ``--check-search``, up to the point where the job would begin.
So the check has the job's modules, site commands, prelude, interpreter and container.
``tune/plan/submission_check.py`` then checks the search for a cluster that is not joined yet; this machine's cores
and GPUs do not matter. If that environment does not work here, this Python checks the options alone, and a line says
so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bigbatch.base import json_values
from bigbatch.base.root import ROOT
from bigbatch.cluster.host.allocation import CHECK_ELSEWHERE, CHECK_MARK
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.cluster.node.ray_commands import ray_python

ARGUMENT = "--check-search"
"""First argument of ``ray_head_workers.slurm``: only check the search."""
CHECK = ROOT / "tune" / "plan" / "submission_check.py"
CHECK_LIMIT_S = 120.0
"""How long the job's environment may take to answer: a first import from a shared file system is slow."""
ELSEWHERE_LIMIT_S = 30.0
SPEAK_AFTER_S = 5.0
CHECK_VARIABLE = "BIGBATCH_CHECK"
"""This variable is 1 while a prelude or site commands run for the check. They can then skip steps for nodes."""


def check_search(arguments: Sequence[str], script: str, cwd: str, env: Mapping[str, str]) -> str | None:
    """Check a search before submission. Returns a line with what could not be checked, or None.

    Args:
        arguments: the arguments of the search.
        script: the batch script, with ``--check-search`` before the job's arguments.
        cwd: the folder in which the job begins.
        env: the environment that the job inherits.

    Raises InputError with the search's own message if it is refused.
    """
    # The -l of the script's first line is read only by who runs it as a file; here it is run with -c.
    shell = [shutil.which("bash") or "/bin/bash", *(["-l"] if script.startswith("#!/bin/bash -l") else [])]
    answer, why = _ask([*shell, "-c", script], cwd, {**env, CHECK_VARIABLE: "1"}, CHECK_LIMIT_S)
    if answer is None:
        command = [sys.executable, str(CHECK), CHECK_ELSEWHERE, *arguments, "--address", "auto"]
        answer, _ = _ask(command, cwd, env, ELSEWHERE_LIMIT_S)
    elif missing := json_values.texts(answer, "missing"):
        why = f"its Python has no {', '.join(missing)} on this machine"
    if refused := json_values.text(answer or {}, "refused"):
        raise InputError(refused)
    return f"not checked on this machine but for its options: the job's environment ({why})" if why else None


def _ask(
    command: Sequence[str], cwd: str, env: Mapping[str, str], limit_s: float
) -> tuple[dict[str, object] | None, str]:
    """Run a check in its own session. Returns its answer, or why there is none. Takes no longer than ``limit_s``."""
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A group of its own, all of which _end kills.
            start_new_session=True,
        )
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    try:
        out, errors = _output(process, limit_s)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {limit_s:g} s"
    finally:
        _end(process)
    # Modules and preludes print lines of their own, before and after ours.
    for line in reversed(out.splitlines()):
        if line.startswith(CHECK_MARK):
            return json_values.json_object(line[len(CHECK_MARK) :]), ""
    error_lines = [line for line in errors.splitlines() if line.strip()] or [f"exit code {process.returncode}"]
    return None, " ".join(error_lines[-1].split())


def _output(process: subprocess.Popen[str], limit_s: float) -> tuple[str, str]:
    """The process's output and errors. Raises TimeoutExpired."""
    # A line only where it is needed: most checks answer sooner.
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=min(SPEAK_AFTER_S, limit_s))
    if sys.stderr.isatty():
        print(f"Checking the search (at most {limit_s:g} s; --no-check skips this) …", file=sys.stderr)
    return process.communicate(timeout=max(limit_s - SPEAK_AFTER_S, 0.1))


def _end(process: subprocess.Popen[str]) -> None:
    """End the check, also after Ctrl-C. Do not wait for it: it may hang in a dead file system."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


# In the job's environment


def main(argv: Sequence[str]) -> int:
    """The batch script calls this in place of the job. The process becomes the check, in the search's interpreter."""
    chosen = options.parse_job_options(argv[1:] if argv[:1] == [ARGUMENT] else argv)
    for name in ("BIGBATCH_HOME", "BIGBATCH_NODE_TMP"):  # a container is given only folders that are there
        if os.environ.get(name) and not os.path.isdir(os.environ[name]):
            os.environ[name] = str(ROOT)
    os.chdir(os.environ.get("BIGBATCH_CWD") or os.getcwd())
    command = [ray_python(), str(CHECK), *chosen.arguments, "--address", "auto"]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
