"""benchmarks/gpu.py: the order and the time of steps, what a cut leaves, and a dry run of every command line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import default_run
import gpu
import gpu_steps
import pytest
import torch
import train_throughput

from bigbatch.train_loop.loop.replayed_step import LEAST_TORCH
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


def test_a_step_that_fails_or_hangs_takes_nothing_from_the_others(tmp_path: Path, monkeypatch) -> None:
    """What hangs is cut after its own time. What it started may end in order: a search ends its cluster."""
    monkeypatch.setattr(gpu, "STOP_S", 30.0)
    results = {name: tmp_path / name for name in ("before", "after", "ended")}
    ends = f"import threading; threading.Event().wait(1); open({str(results['ended'])!r}, 'w').write('1')"
    child = f"import signal, sys\ndef end(*_):\n    {ends}\n    sys.exit()\nsignal.signal(15, end); signal.pause()"
    hangs = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); signal.pause()"
    wanted = [
        step("before", f"open({str(results['before'])!r}, 'w').write('1')", result=results["before"]),
        step("fails", "raise SystemExit(3)"),
        step("hangs", hangs, most_minutes=0.05),
        step("after", f"open({str(results['after'])!r}, 'w').write('1')", result=results["after"]),
    ]
    said = run(tmp_path, wanted, left_s=40.0)
    assert [what.partition(" ")[0] for what in said.values()] == ["passed", "failed", "cut", "passed"]
    assert all(path.exists() for path in results.values())
    assert gpu.report(said) == 1
    again = run(tmp_path, [one for one in wanted if one.name != "hangs"])
    assert again["before"] == again["after"] == "passed before at this commit" and again["fails"].startswith("failed")


def test_what_a_search_that_is_cut_has_shown_and_logged_is_not_lost(tmp_path: Path, monkeypatch, capsys) -> None:
    """Here it cuts itself, as ``gpu.py`` does with a step that hangs: with SIGTERM."""
    search = tmp_path / "search.py"
    search.write_text(
        "import os, pathlib, signal, sys, threading\n"
        "logs = pathlib.Path(sys.argv[1], 'first', 'logs')\n"
        "logs.mkdir(parents=True)\n"
        "(logs / 'trial-00000.log').write_text('rank 0 ERROR an illegal memory access')\n"
        "print('Starting Ray ...', flush=True)\n"
        "threading.Event().wait(1)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
    )
    monkeypatch.setattr(default_run, "COMMAND", ("python", str(search), "runs"))
    with pytest.raises(SystemExit, match="the search was cut; it showed:\nStarting Ray ..."):
        default_run.one_run(0, [])
    assert "trial-00000.log\nrank 0 ERROR an illegal memory access\n" in capsys.readouterr().out


def test_steps_that_are_not_replayed_cost_the_other_arms_nothing(tmp_path: Path, monkeypatch) -> None:
    def normal_steps(*_: object) -> None:
        raise train_throughput.NotReplayed

    steps = {"ours": lambda batches, count: None, "ours, replayed": normal_steps, "other": lambda batches, count: None}
    monkeypatch.setattr(train_throughput, "arms_here", lambda *_: {name: (one, None) for name, one in steps.items()})
    monkeypatch.setattr(train_throughput, "profile", lambda *_: [])
    monkeypatch.setattr(train_throughput, "image_folder", lambda *_: Path("digits"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "pretended")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # which main sets
    words = f"--device cuda --replayed --no-real --rounds 2 --output {tmp_path / 'r.json'}".split()
    monkeypatch.setattr(sys, "argv", ["train_throughput.py", *words])
    with pytest.raises(SystemExit, match="no step is replayed"):
        train_throughput.main()
    result = json.loads((tmp_path / "r.json").read_text())
    assert set(result["synthetic"]["images_per_s"]) == {"ours", "other"}


def test_no_step_takes_all_the_time(tmp_path: Path) -> None:
    settings = gpu_steps.Settings("cuda", False, "h200", tmp_path, tmp_path, None, tmp_path, 16)
    most = {step.name: step.most_minutes for step in gpu_steps.steps(settings)}
    assert {name for name, minutes in most.items() if minutes > 24} == {"batch_scaling"}, "which keeps what it has"
    assert most["tests"] + most["train_throughput_resnet18"] + most["optimizer_step"] <= 12


def script(*words: object, cwd: Path, timeout_s: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(GPU), *map(str, words)], cwd=cwd, env={**clean_environment(), **env},
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip


def test_the_list_names_every_step_and_needs_no_gpu(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    assert gpu.main(["--list"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "GPU: none that torch can use"
    assert [line.split()[0] for line in lines] == [
        "tests", "train_throughput_resnet18", "optimizer_step", "default_run_digits_replayed_auto",
        "default_run_digits", "default_run_cifar10", "default_run_digits_replayed_4",
        "train_throughput", "train_throughput_compiled", "profile_cost", "input_pipeline",
        "batch_scaling",
    ]  # fmt: skip
    assert "cannot" not in "".join(lines) and "it needs CIFAR-10" in "".join(lines)
    assert ".".join(map(str, gpu_steps.REPLAYING_TORCH)) == LEAST_TORCH
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cu130")
    gpu.main(["--list"])
    assert capsys.readouterr().out.count("replays need torch 2.13") == 2


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_a_dry_run_on_the_cpu_runs_every_command_line_and_stores_every_result(tmp_path: Path) -> None:
    started = time.time()
    words = ("--device", "cpu", "--tiny", "--minutes", "30", "--folder", "kept")
    done = script(*words, cwd=tmp_path, timeout_s=1500, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    results = sorted((tmp_path / "kept" / "results").glob("*.json"))
    names = {path.name.rpartition("_")[0] for path in results}
    arms = {f"default_run_digits_replayed_{count}" for count in ("auto", "4")}
    assert names == arms | {"train_throughput_resnet18", "optimizer_step", "default_run_digits", "default_run_cifar10",
                     "train_throughput", "train_throughput_compiled", "profile_cost", "input_pipeline",
                     "batch_scaling_digits"}  # fmt: skip
    for path in results:
        stored = json.loads(path.read_text())
        assert stored["provenance"]["git"] and stored["benchmark"] in path.name and path.stat().st_mtime >= started
    again = script(*words, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert again.returncode == 0 and again.stdout.count("passed before at this commit") == 12
