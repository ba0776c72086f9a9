"""benchmarks/gpu.py: the order and the time of steps, what a cut leaves, and a dry run of every command line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu
import pytest

from helpers.paths import ROOT
from helpers.processes import clean_environment, wait_gone

BENCHMARKS = ROOT / "benchmarks"
GPU = BENCHMARKS / "gpu.py"


def step(name: str, code: str, **keywords: Any) -> Any:
    values = {"minutes": 1.0, "least_minutes": 0.5} | keywords
    return gpu.Step(name=name, command=(sys.executable, "-c", code), **values)


def run(folder: Path, steps: list[Any], left_s: float = 3600.0, commit: str = "c1") -> dict[str, str]:
    return gpu.run_steps(steps, gpu.State(folder), folder, commit, left_s, lambda: 0.0)


def test_what_has_passed_is_not_repeated_until_the_code_or_the_command_changes(tmp_path: Path) -> None:
    count, result = tmp_path / "count", tmp_path / "result.json"
    code = f"open({str(count)!r}, 'a').write('x'); open({str(result)!r}, 'w').write('1')"
    one = step("one", code, result=result)
    assert run(tmp_path, [one])["one"].startswith("passed after")
    assert run(tmp_path, [one])["one"] == "passed before at this commit"
    assert count.read_text() == "x"
    run(tmp_path, [one], commit="c2")
    run(tmp_path, [step("one", code + "  # other words", result=result)], commit="c2")
    assert count.read_text() == "xxx"
    result.unlink()
    run(tmp_path, [step("one", code + "  # other words", result=result)], commit="c2")
    assert count.read_text() == "xxxx", "a result that is gone is measured again"


def test_a_failure_is_said_kept_in_the_log_and_repeated(tmp_path: Path) -> None:
    steps = [step("bad", "print('why'); raise SystemExit(3)"), step("good", "print('fine')")]
    said = run(tmp_path, steps)
    assert said["bad"].startswith("failed") and said["good"].startswith("passed")
    assert "why" in (tmp_path / "bad.log").read_text()
    assert gpu.report(said) == 1
    assert run(tmp_path, steps)["bad"].startswith("failed"), "it is tried again"


def test_a_step_for_which_the_time_is_too_short_is_listed_and_a_shorter_one_runs(tmp_path, capsys):
    long = step("long", "raise SystemExit(1)", minutes=20.0, least_minutes=10.0)
    short = step("short", "")
    elsewhere = step("elsewhere", "raise SystemExit(1)", missing="it needs data")
    said = run(tmp_path, [long, elsewhere, short], left_s=120.0)
    assert said["long"] == "no time: it takes about 20 min, 2.0 min are left"
    assert said["short"].startswith("passed") and said["elsewhere"] == "cannot run here: it needs data"
    assert gpu.report(said) == 75
    assert "no time: it takes about 20 min" in capsys.readouterr().out
    assert gpu.report({"elsewhere": said["elsewhere"], "short": said["short"]}) == 0


def test_a_cut_step_ends_with_all_that_it_started_and_gathers_what_there_is(tmp_path, monkeypatch):
    mark = f"bigbatch-cut-{os.getpid()}"
    child = f"import signal; signal.pause()  # {mark}"
    code = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); signal.pause()"
    result = tmp_path / "result.json"
    gather = (sys.executable, "-c", f"open({str(result)!r}, 'w').write('some')")
    monkeypatch.setattr(gpu, "GATHER_S", 60.0)
    cut = step("cut", code, gather=gather, result=result, least_minutes=0.0)
    said = run(tmp_path, [cut], left_s=62.0)
    assert said["cut"].startswith("cut after") and result.read_text() == "some"
    wait_gone(mark)
    assert not gpu.State(tmp_path).passed(cut, "c1"), "a later call goes on with it"


def script(*words: object, cwd: Path, timeout_s: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(GPU), *map(str, words)], cwd=cwd, env={**clean_environment(), **env},
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "these steps need a GPU; got none. Try the commands with --device cpu --tiny."),
        (["--minutes", "0"], "--minutes must be above 0; got 0"),
        (["--device", "cpu", "--only", "nonsense"], "--only takes names of steps; got nonsense. Write some of: tests"),
        (["--images", "nowhere.tar"], "--images must exist; got 'nowhere.tar'"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    try:
        code: object = gpu.main(words)
    except SystemExit as end:
        code = end.code
    assert code and message in capsys.readouterr().err + str(code)


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_a_dry_run_on_the_cpu_runs_every_command_line_and_stores_every_result(tmp_path: Path) -> None:
    started = time.time()
    words = ("--device", "cpu", "--tiny", "--minutes", "30", "--folder", "kept")
    done = script(*words, cwd=tmp_path, timeout_s=1500, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    results = sorted((tmp_path / "kept" / "results").glob("*.json"))
    names = {path.name.rpartition("_")[0] for path in results}
    assert names == {"train_throughput_resnet18", "optimizer_step", "default_run_digits", "default_run_cifar10",
                     "train_throughput", "train_throughput_compiled", "profile_cost", "input_pipeline",
                     "batch_scaling_digits"}  # fmt: skip
    for path in results:
        stored = json.loads(path.read_text())
        assert stored["provenance"]["git"] and stored["benchmark"] in path.name and path.stat().st_mtime >= started
    again = script(*words, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert again.returncode == 0 and again.stdout.count("passed before at this commit") == 10
