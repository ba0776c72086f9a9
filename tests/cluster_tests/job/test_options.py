"""A job's own options, and the search's; inside and outside of a container."""

import os
import subprocess
import sys

import pytest

from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from helpers.paths import ROOT
from helpers.processes import program


def test_the_jobs_options_come_first_and_the_rest_is_the_searchs():
    given = ["--keep-logs", "--max-restarts", "5", "--margin=60", "--space", "smoke", "--trials", "3"]
    chosen = options.parse_job_options(given)
    assert (chosen.keep_logs, chosen.max_restarts, chosen.margin_s, chosen.chain) == (True, 5, 60, False)
    assert chosen.arguments == ("--space", "smoke", "--trials", "3")
    assert options.parse_job_options(["--keep-logs", "--", "python", "-c", "1"]).command == ("python", "-c", "1")


@pytest.mark.parametrize(
    "wrong",
    [["--max-restarts"], ["--margin", "soon"], ["--"], ["--space", "x", "--", "ls"], ["--study=a/b"], ["--study", "é"]],
)
def test_wrong_options_are_refused_in_one_line_with_the_fix(wrong):
    with pytest.raises(InputError, match="Write") as refusal:
        options.parse_job_options(wrong)
    assert "\n" not in str(refusal.value)
    assert options.parse_job_options(["--resume", "--study", "é"]).arguments, "its folder may have been renamed"


def test_the_container_is_called_with_what_the_job_needs_bound(tmp_path):
    """A stand-in for apptainer writes down how it is called and runs what comes after the image."""
    stand_in = 'echo "$@" > "$CALLED"\nwhile [ "$1" != /images/bb.sif ]; do shift; done\nshift\nexec "$@"'
    program(tmp_path / "apptainer", stand_in)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLED": str(tmp_path / "called"), "BIGBATCH_ROOT": "/code",
        "BIGBATCH_HOME": "/records", "BIGBATCH_CONTAINER": "/images/bb.sif",
        "BIGBATCH_CONTAINER_PYTHON": sys.executable, "BIGBATCH_USER_TMPDIR": str(tmp_path / "local"),
    }  # fmt: skip
    (tmp_path / "local").mkdir()
    script = [str(ROOT / "cluster" / "in_container.sh"), "-c", "import sys; print(sys.argv[1:])", "a b", "c"]
    done = subprocess.run(script, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['a b', 'c']\n", done.stderr
    words = [script[0], "--command", "sh", "-c", 'printf "%s|" "$@"', "sh", "a b", "--command", ""]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a b|--command||", done.stderr
    called = (tmp_path / "called").read_text()
    assert all(f"--bind {path}" in called for path in ("/code", "/records", "/tmp", tmp_path, tmp_path / "local"))
    assert f"--pwd {tmp_path} " in called
    (tmp_path / "local").rmdir()  # what is not on this node cannot be bound
    subprocess.run(script, env=env, cwd=tmp_path, check=True, capture_output=True)
    assert "/local" not in (tmp_path / "called").read_text()
    del env["BIGBATCH_CONTAINER_PYTHON"]
    program(tmp_path / "python3", 'echo "$@"')
    done = subprocess.run(script[:1], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "called").read_text().endswith("/images/bb.sif python3\n"), done.stderr
    missing = subprocess.run(script, env={**env, "PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 127 and "apptainer" in missing.stderr
