"""``--profile-steps`` as it is typed, and what it concludes."""

import json
import sys
from pathlib import Path

import pytest

from bigbatch.train_loop.launch import command
from bigbatch.train_loop.launch.command import main
from bigbatch.train_loop.launch.profile import bound_lines, profile_lines
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES
from bigbatch.train_loop.loop.step_profile import Spread, StepProfile
from helpers.commands import run_process
from helpers.paths import TRAIN

WORDS = ["--recipe", "cifar10-sgd-128", "--data", "digits", "--set", "data.image_size=8", "epochs=3"]


def steady(seconds: float) -> Spread:
    return Spread(seconds, seconds, seconds, 0.0)


def profile_of(
    communication: float | None = None, device_memory_bytes: int | None = None, **parts: float
) -> StepProfile:
    """Of steps of one second; ``parts`` of it by phase, the rest is the forward pass."""
    parts = {name: parts.get(name, 0.0) for name in (*PHASES, OTHER)}
    parts["forward"] += 1 - sum(parts.values())
    return StepProfile(
        device="NVIDIA H100" if device_memory_bytes else "CPU", workers=1 if communication is None else 4,
        global_size=256, accumulation_steps=2, micro_size=128, loader_processes=2, steps=50, step=steady(1.0),
        phases={name: steady(part) for name, part in parts.items()},
        communication=None if communication is None else steady(communication), slowest_data_s=parts["data"],
        validation=steady(0.5), validation_batches=20, bn_s=0.0, validations=36, steps_per_epoch=100, epochs=36,
        memory_bytes=10 * 2**30, device_memory_bytes=device_memory_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (profile_of(data=0.5), "50 % of each step waits for data."),
        (profile_of(data=0.3), "70 % of each step computes forward and backward."),
        (profile_of(0.6, backward=0.9), "60 % of each step sums gradients over the workers."),
        (profile_of(optimizer=0.25), "25 % of each step is the optimizer's."),
        (profile_of(transfer=0.2), "20 % of each step copies and normalises"),
        (profile_of(other=0.2), "20 % of each step lies between the phases"),
    ],
)
def test_what_bounds_a_run(profile: StepProfile, words: str) -> None:
    text = "\n".join(bound_lines(profile))
    assert words in text and text.startswith("bound "), text


def test_parts_below_a_few_percent_are_not_mentioned() -> None:
    lines = bound_lines(profile_of(0.05, data=0.03, optimizer=0.05, backward=0.5))
    assert len(lines) == 1 and "computes forward and backward" in lines[0]


def test_estimates_in_words() -> None:
    text = "\n".join(profile_lines(profile_of(0.1, device_memory_bytes=80 * 2**30)))
    assert "256 images/s" in text and "10.00 GiB of 80 GiB" in text
    # 36 epochs of 100 steps of 1 s and 20 batches of 0.5 s: 66 minutes on each of 4 GPUs.
    assert "66 min for 36 epochs, 4.4 GPU hours" in text
    assert "communication" in text and "the wait for the slowest worker is" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile-steps", "0"], "--profile-steps must be at least 1; got 0. Write --profile-steps 50."),
        (["--torch-profiler", "traces"], "Write --profile-steps 50 as well."),
        (["--profile-steps", "5", "--workers", "2"], "torchrun --nproc-per-node 2"),
        (["--profile-steps", "5", "--torch-profiler", "/dev/null/x"], "--torch-profiler must be a writable folder"),
        (["--profile-steps", "5", "--output", "/dev/null/x"], "--output must be a writable folder"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_profile_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, traces = tmp_path / "out", tmp_path / "traces"
    small = "model.name=squeezenet1_1 model.stem=auto data.image_size=32 batch.global_size=32 data.subset=0.1"
    words = [*WORDS[:5], *small.split(), "--output", str(out), "--profile-steps", "3"]
    assert main([*words, "--torch-profiler", str(traces)]) == 0
    printed = capsys.readouterr().out
    assert "data wait" in printed and "bound   " in printed and "whole run" in printed
    assert main(words) == 0
    first, second = map(json.loads, (out / "profile.jsonl").read_text().splitlines())
    assert first["steps"] == second["steps"] == 3 and first["workers"] == 1
    parts = sum(spread["mean_s"] for spread in first["phases"].values())
    assert parts == pytest.approx(first["step"]["mean_s"])
    assert first["images_per_s"] == pytest.approx(32 / first["step"]["mean_s"])
    assert sum(first["seconds"]["step"]) / 3 == pytest.approx(first["step"]["mean_s"]), "the raw times"
    assert len(list(traces.glob("rank0.*.pt.trace.json"))) == 1
    assert sorted(path.name for path in out.iterdir()) == ["profile.jsonl"], "nothing that looks like a run"


@pytest.mark.slow
@pytest.mark.without_ray
def test_two_ranks_under_torchrun_measure_their_communication(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAIN)
    more = ("model.name=resnet18", "data.subset=0.2", "--output", "out", "--profile-steps", "4")
    done = run_process(*torchrun, *WORDS, *more, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, (tmp_path / "out" / "profile.jsonl").read_text().splitlines())
    assert (line["workers"], line["global_size"]) == (2, 128)
    assert line["communication"]["median_s"] < line["phases"]["backward"]["median_s"]
    assert sum(spread["mean_s"] for spread in line["phases"].values()) == pytest.approx(line["step"]["mean_s"])
    assert done.stdout.count("communication: the backward pass, minus one") == 1, "rank 0 alone prints"


def test_a_profile_that_is_stopped_is_not_resumed(monkeypatch, capsys):
    def stop(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measures_only", stop)
    for more, said in ((["--profile-steps", "5"], "stopped. To measure again: "), ([], "stopped. To resume: ")):
        assert command.main(["--recipe", "cifar10-sgd-128", "--data", "digits", *more]) == 130
        assert capsys.readouterr().err.startswith(said)
