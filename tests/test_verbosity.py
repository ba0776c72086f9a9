"""``--quiet`` prints the answer and errors alone."""

from pathlib import Path

from bigbatch import command
from helpers import commands
from helpers.processes import clean_environment, program

SUBMIT = ("cluster", "submit", "--cpus-per-node", "2", "--space", "smoke", "--no-check")


def test_a_plan_is_silent(tmp_path: Path) -> None:
    quiet = commands.run("--space", "smoke", "--study", "s", "--dry-run", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    wrong = commands.run("--space", "smokee", "--quiet", cwd=tmp_path)
    assert wrong.returncode == 2 and "'smokee'" in wrong.stderr


def test_submitting_quietly_prints_the_id_alone(tmp_path: Path) -> None:
    program(tmp_path / "sbatch", "echo 4711")
    env = {"PATH": f"{tmp_path}:{clean_environment()['PATH']}", "BIGBATCH_HOME": str(tmp_path / "home")}
    quiet = commands.run(*SUBMIT, "--quiet", cwd=tmp_path, main=command.main, **env)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "4711\n", "")
