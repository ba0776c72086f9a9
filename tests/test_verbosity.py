"""``--quiet`` prints the answer and errors alone; ``--verbose`` says when each step of the start was done."""

import re
import subprocess
import sys
from pathlib import Path

from bigbatch import command
from helpers import commands
from helpers.processes import clean_environment, program

SUBMIT = ("cluster", "submit", "--cpus-per-node", "2", "--space", "smoke", "--no-check")
STEP = re.compile(r"\[\d+\.\d s\] (.+)")


def bigbatch(*words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *map(str, words)]
    environment = {**clean_environment(), "BIGBATCH_HOME": str(cwd / "home"), **env}
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def steps_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return STEP.findall(done.stderr)


def test_a_plan_is_silent_or_says_its_steps(tmp_path: Path) -> None:
    words = ("--space", "smoke", "--study", "s", "--dry-run")
    plain, quiet, verbose = (commands.run(*words, *more, cwd=tmp_path) for more in ((), ("--quiet",), ("--verbose",)))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert plain.stdout == verbose.stdout != "" and plain.stderr == ""
    assert steps_of(verbose) == ["the options are checked, the search is planned"]
    wrong = commands.run("--space", "smokee", "--quiet", cwd=tmp_path)
    assert wrong.returncode == 2 and "'smokee'" in wrong.stderr
    both = commands.run(*words, "--quiet", "--verbose", cwd=tmp_path)
    assert both.returncode == 2 and "--verbose" in both.stderr and both.stderr.count("\n") == 1


def test_submitting_quietly_prints_the_id_alone(tmp_path: Path) -> None:
    program(tmp_path / "sbatch", "echo 4711")
    env = {"PATH": f"{tmp_path}:{clean_environment()['PATH']}", "BIGBATCH_HOME": str(tmp_path / "home")}
    quiet = commands.run(*SUBMIT, "--quiet", cwd=tmp_path, main=command.main, **env)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "4711\n", "")
    verbose = bigbatch("-m", "bigbatch", *SUBMIT, "--verbose", cwd=tmp_path, PATH=env["PATH"])
    assert verbose.stdout.startswith("Job 4711 is submitted")
    (script,) = re.findall(r"the batch script is (\S+)", "\n".join(steps_of(verbose)))
    assert Path(script).read_text().startswith("#!/bin/bash")
