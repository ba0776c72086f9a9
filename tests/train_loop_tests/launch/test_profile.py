"""``--profile-steps`` as it is typed, and what it concludes."""

import json
import sys
from pathlib import Path

import pytest

from bigbatch.train_loop.launch import command
from bigbatch.train_loop.launch.command import main
from bigbatch.train_loop.launch.profile import profile_lines
from bigbatch.train_loop.loop.chronometer import OTHER, PHASES, STEP
from bigbatch.train_loop.loop.step_profile import StepProfile
from helpers.commands import run_process
from helpers.paths import TRAIN

WORDS = ["--recipe", "cifar10-sgd-128", "--data", "digits", "--set", "data.image_size=8", "epochs=3"]


def profile_of(communication: float = 0.0, device: str = "CPU", **parts: float) -> StepProfile:
    """Of steps of one second; ``parts`` of it by phase, the rest is the forward pass."""
    phases = {name: parts.get(name, 0.0) for name in (*PHASES, OTHER)}
    phases["forward"] += 1 - sum(phases.values())
    return StepProfile(
        device=device, workers=4 if communication else 1, global_size=256, accumulation_steps=2, micro_size=128,
        steps=50, phases={**phases, STEP: 1.0, "communication": communication}, images_per_s=256.0,
        steps_per_epoch=100, train_s=100.0, val_s=10.0, bn_s=0.0, epochs=36, run_s=36 * 110.0,
        memory_bytes=10 * 2**30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (profile_of(data=0.6), "of each step 60 % waits for data, 40 % computes forward and backward; 256 images/s"),
        (profile_of(0.6, backward=0.9), "60 % sums gradients over the workers, 40 % computes"),
        (profile_of(optimizer=0.25), "25 % is the optimizer's"),
        (profile_of(transfer=0.2), "20 % copies and normalises"),
        (profile_of(other=0.2), "20 % lies between the phases"),
        (profile_of(0.05, data=0.05, optimizer=0.05), "of each step 85 % computes forward and backward; 256 images/s"),
        # 36 epochs of 100 steps of 1 s and 10 s of validation: 66 minutes on each of 4 GPUs.
        (profile_of(0.1, "NVIDIA H100"), "36 epochs 66 min, 4.4 GPU hours; at most 10.00 GiB"),
        (profile_of(0.1), "\ncommunication        0.1 s     10.0 %\n"),
    ],
)
def test_what_bounds_a_run_and_what_it_would_take(profile: StepProfile, words: str) -> None:
    assert words in "\n".join(profile_lines(profile))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile-steps", "0"], "--profile-steps must be at least 1; got 0. Write --profile-steps 50."),
        (["--torch-profiler", "traces"], "Write --profile-steps 50 as well."),
        (["--profile-steps", "5", "--workers", "2"], "torchrun --nproc-per-node 2"),
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
    assert "of each step" in printed and "an epoch takes" in printed
    assert main(words) == 0
    first, second = map(json.loads, (out / "profile.jsonl").read_text().splitlines())
    assert first["steps"] == second["steps"] == 3 and first["workers"] == 1
    assert first["images_per_s"] == pytest.approx(32 / first["phases"]["step"])
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
    assert line["phases"]["communication"] < line["phases"]["backward"]
    assert done.stdout.count("\ncommunication ") == 1, "rank 0 alone prints"


def test_a_profile_that_is_stopped_is_not_resumed(monkeypatch, capsys):
    def stop(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measures_only", stop)
    for more, said in ((["--profile-steps", "5"], "stopped. To measure again: "), ([], "stopped. To resume: ")):
        assert command.main(["--recipe", "cifar10-sgd-128", "--data", "digits", *more]) == 130
        assert capsys.readouterr().err.startswith(said)
