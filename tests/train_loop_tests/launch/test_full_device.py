"""Full runs whose device is too small for the micro-batch, really started, under Ray Train and by torchrun."""

import json
import sys
from pathlib import Path

import pytest

from bigbatch.train_loop.config import TrainConfig
from helpers.commands import run_process
from helpers.full_device import small_device
from helpers.paths import TRAIN
from helpers.ranks import write_config

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def best(tiny_images: Path, tmp_path: Path) -> Path:
    """On two workers one micro-batch of 16 images a step."""
    return write_config(tmp_path, tiny_images, epochs=3, batch__global_size=32)


def train(best: Path, *launcher: str, env: dict[str, str], options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output of a full run on two workers, with a checkpoint at the end of each epoch."""
    words = ("--config", best, "--output", "out", *options, "--checkpoint-every-s", 0)
    done = run_process(sys.executable, *launcher, TRAIN, *words, cwd=best.parent, **env)
    return done.returncode, done.stdout + done.stderr


def check_healed(best: Path, output: str, halvings: tuple[tuple[int, int, int], ...] = ((16, 8, 1), (8, 4, 1))) -> None:
    """Rank 1 had to halve; every epoch was reported, and the result has the micro-batch that fitted."""
    size = halvings[-1][1]
    result = json.loads((best.parent / "out" / "result.json").read_text())
    found = [(one["micro_size_before"], one["micro_size"], one["rank"]) for one in result["halvings"]]
    assert found == [*halvings], output
    batch = TrainConfig.from_dict(result["config"]).batch
    assert (batch.global_size, batch.split(2).micro_size, batch.split(2).accumulation_steps) == (32, size, 16 // size)
    assert [record["epoch"] for record in result["history"]] == [1, 2, 3]
    assert [record["optimizer_steps"] for record in result["history"]] == [2, 4, 6]
    assert f"The micro-batch is now {size}, with {16 // size} accumulation steps" in output


@pytest.mark.slow
def test_under_ray_one_ranks_full_device_hangs_no_other_and_heals(best: Path) -> None:
    code, output = train(best, env=small_device(best.parent / "site", 4, rank=1), options=("--workers", "2"))
    assert code == 0, output
    check_healed(best, output)


@pytest.mark.slow
@pytest.mark.without_ray
def test_torchrun_heals_with_its_own_restarts(best: Path) -> None:
    code, output = train(best, *TORCHRUN, "--max-restarts", "2", env=small_device(best.parent / "site", 4, rank=1))
    assert code == 0, output
    check_healed(best, output)


@pytest.mark.slow
@pytest.mark.without_ray
def test_torchrun_without_restarts_says_how_to_continue(best: Path) -> None:
    env = small_device(best.parent / "site", 8, rank=1)
    code, output = train(best, *TORCHRUN, env=env)
    assert code == 1 and "The micro-batch is now 8" in output, output
    assert "To continue with the smaller micro-batch: repeat the command" in output
    code, output = train(best, *TORCHRUN, env=env)
    assert code == 0, output
    check_healed(best, output, ((16, 8, 1),))


@pytest.mark.exhaustive
def test_under_ray_what_does_not_fit_at_one_image_fails_on_all_ranks(best: Path) -> None:
    # Of 64 pixels the last maps are 2 × 2: BatchNorm can train on one image.
    options = ("--workers", "2", "--set", "global_size=4", "--set", "data.image_size=64")
    code, output = train(best, env=small_device(best.parent / "site", 0, rank=1), options=options)
    assert code == 1 and "failed: the device's memory is too small for micro-batches of one image" in output, output
    assert "Traceback" not in output
