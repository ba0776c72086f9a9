"""``--quiet`` prints the answer and errors alone; ``--verbose`` says when each step of the start was done."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch import command
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.console.display import SearchProgress, make_display
from helpers import commands
from helpers.paths import TUNE
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


def test_a_quiet_search_shows_no_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(SearchProgress(3, 1, {}), quiet=True) as display:
        display.search_said("nobody reads this")
    assert capsys.readouterr().out == ""


def test_submitting_quietly_prints_the_id_alone(tmp_path: Path) -> None:
    program(tmp_path / "sbatch", "echo 4711")
    env = {"PATH": f"{tmp_path}:{clean_environment()['PATH']}", "BIGBATCH_HOME": str(tmp_path / "home")}
    quiet = commands.run(*SUBMIT, "--quiet", cwd=tmp_path, main=command.main, **env)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "4711\n", "")
    verbose = bigbatch("-m", "bigbatch", *SUBMIT, "--verbose", cwd=tmp_path, PATH=env["PATH"])
    assert verbose.stdout.startswith("Job 4711 is submitted")
    (script,) = re.findall(r"the batch script is (\S+)", "\n".join(steps_of(verbose)))
    assert Path(script).read_text().startswith("#!/bin/bash")


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_a_quiet_run_prints_its_result_alone_and_a_verbose_one_its_start(tiny_images: Path, tmp_path: Path) -> None:
    changes = {"model.name": "shufflenet_v2_x0_5", "epochs": 1, "batch.global_size": 32, "data.image_size": 16}
    config = TrainConfig().replace_keys({**changes, "precise_bn": "off", "data.name": str(tiny_images)})
    (tmp_path / "config.json").write_text(config.to_json())
    quiet = bigbatch("-m", "bigbatch", "train", "--config", "config.json", "--quiet", cwd=tmp_path)
    assert quiet.returncode == 0, quiet.stderr
    assert re.fullmatch(r"best validation top-1 .+ after epoch 1; all of it in .+\n", quiet.stdout)
    search = ("--space", "smoke", "--data", tiny_images, "--set", "image_size=16", "--model", "shufflenet_v2_x0_5")
    words = (*search, "--trials", "1", "--max-epochs", "1", "--confirm", "none", "--study", "s")
    verbose = bigbatch(TUNE, *words, "--verbose", cwd=tmp_path)
    assert verbose.returncode == 0, verbose.stderr
    steps = "\n".join(steps_of(verbose))
    (log,) = re.findall(r"its log is (\S+),", steps)
    assert (tmp_path / log).exists() and steps.index("the study is open") < steps.index("Ray has started")
    silent = bigbatch(TUNE, *words, "--resume", "--trials", "2", "--quiet", cwd=tmp_path)
    assert silent.returncode == 0 and "trial 1 epoch" not in silent.stdout and "Starting Ray" not in silent.stdout
    assert "best" in silent.stdout and STEP.search(silent.stderr) is None
    assert "trial 1 epoch 1/1" in (tmp_path / "runs" / "s" / "logs" / "driver.log").read_text()
