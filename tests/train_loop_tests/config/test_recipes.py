"""Each recipe against the published table, written out here; what a recipe's file must say; ``--recipe``."""

import json
from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import TrainConfig, config_keys, given
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.launch.command import main
from helpers.commands import run

IMAGENET = 1_281_167

# name: optimizer, batch, peak lr, warmup (epochs, or steps), schedule, weight decay, label smoothing, epochs, top-1
PUBLISHED = {
    "mlperf-lars-4k": ("lars", 4096, 10.0, 5, "poly", 2e-4, 0.1, 42, 75.9),
    "mlperf-lars-8k": ("lars", 8192, 17.0, 5, "poly", 2e-4, None, 44, 75.9),
    "mlperf-lars-32k": ("lars", 32768, 21.2, 16, "poly", 2.5e-5, None, 58, 75.9),
    "nus-lars-4k": ("lars", 4096, 11.3, 1.25, "poly", 1e-4, 0.1, 90, 77.38),
    "nus-lars-32k": ("lars", 32768, 32.0, 14, "poly", 1e-4, 0.1, 90, 76.75),
    "lamb-32k": ("lamb", 32768, 0.04, "782 steps", "poly", 1.5, 0.1, 90, 76.3),
    "rsb-a3": ("lamb", 2048, 8e-3, 5, "cosine", 0.02, 0.0, 100, 78.30),
    "goyal-sgd-8k": ("sgd", 8192, 3.2, 5, "step", 1e-4, 0.0, 90, 76.26),
    "nvidia-dle-90": ("sgd", 2048, 2.048, 8, "cosine", 1 / 32768, 0.1, 90, 77.12),
    "nado-nesterov-32k": ("sgd", 32768, 7.05, "706 steps", "poly", None, None, 64, 75.92),
    "cifar10-sgd-128": ("sgd", 128, 0.1, 0, "step", 5e-4, 0.0, 350, 93.02),
    "imagenette-sgd-64": ("sgd", 64, None, None, None, None, None, 80, None),
}
"""None: not published, or it could not be read; then the file must list the key under ``chosen_by_us``."""


def load(name: str) -> tuple[dict[str, Any], TrainConfig]:
    path = given.recipe_path(name)
    return json.loads(path.read_text()), read_config(path)


def test_every_recipe_is_in_the_table() -> None:
    assert given.recipe_names() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_those_of_the_published_table(name: str) -> None:
    content, c = load(name)
    optimizer, batch, lr, warmup, schedule, wd, smoothing, epochs, top1 = PUBLISHED[name]
    steps = c.schedule.warmup_steps
    found = {
        "optimizer.name": (c.optimizer.name, optimizer),
        "batch.global_size": (c.batch.global_size, batch),
        "optimizer.peak_lr": (c.optimizer.peak_lr, lr),
        "schedule.warmup_epochs": (f"{steps} steps" if steps else c.schedule.warmup_epochs, warmup),
        "schedule.name": (c.schedule.name, schedule),
        "optimizer.weight_decay": (c.optimizer.weight_decay, wd),
        "label_smoothing": (c.label_smoothing, smoothing),
        "epochs": (c.epochs, epochs),
    }
    for key, (value, published) in found.items():
        if published is None:
            assert key in content["chosen_by_us"] or content["chosen_by_us"] == ["all of it"], key
        else:
            assert value == published, key
    assert content["expected"]["top1"] == top1


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_is_a_whole_configuration_with_source_and_cost(name: str) -> None:
    content, c = load(name)
    assert TrainConfig.from_dict(content["config"]) == c
    assert {"epochs", "loss", "model", "data", "batch", "optimizer", "schedule"} <= content["config"].keys()
    assert content["source"] and content["url"].startswith("https://") and content["expected"]["note"]
    assert content["differs"], "our data pipeline is not theirs: say how"
    for key in content["chosen_by_us"]:
        assert key in config_keys() or key == "all of it", key
    if c.data.name == "imagenet":
        steps = IMAGENET // c.batch.global_size * c.epochs
        images = IMAGENET * c.epochs
        assert (content["cost"]["images"], content["cost"]["optimizer_steps"]) == (images, steps)
        assert content["cost"]["a100_hours"] == round(images / 2470 / 3600, 1)
    c.batch.split(1), c.batch.split(8)


def test_the_command_takes_a_recipe_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    for arguments, words in (
        (["--recipe", "rsb-a"], "got 'rsb-a'. Did you mean 'rsb-a3'"),
        (["--recipe", "zzz"], "Write one of cifar10"),
        (["--recipe", "rsb-a3"], "data set imagenet must be packed"),
        (["--recipe", "rsb-a3", "--config", "x.json"], "exclude each other"),
        ([], "needs one of --config, --recipe"),
    ):
        done = run(*arguments, cwd=tmp_path, main=main)
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
