"""TrainConfig: round trip, refusals that name rule, value and fix, and how a batch is cut."""

import json
import re

import numpy as np
import pytest

from bigbatch.train_loop.config import (
    BatchConfig,
    ConfigError,
    Options,
    TrainConfig,
    config_keys,
    parse_assignments,
    resolve_key,
    written_assignments,
)
from bigbatch.train_loop.config.given import read_config
from bigbatch.train_loop.config.rules import ConflictError

OTHER = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v / 2 + 0.01, str: lambda v: v}


def test_every_key_survives_the_round_trip_through_json():
    changes = {}
    for key, kind in config_keys().items():
        if key.startswith("trainable."):
            continue  # a whole training function has no other keys
        *path, leaf = key.split(".")
        value = TrainConfig().to_dict()
        for part in path:
            value = value[part]
        changes[key] = OTHER[kind](value[leaf]) if kind in OTHER else [1.0, 2.5]
        if kind is Options:
            changes[key] = {"width": 3, "parts": [1, 2.5, "a", None, True]}
    changes |= {
        "batch.micro_size": 1, "model.compile": "on", "schedule.warmup_steps": 0, "optimizer.name": "lamb",
        "metrics": ["f1", "net.py:iou"], "schedule.name": "step", "model.stem": "small",
        "data.augment.max_crop_ratio": 1.5, "data.image_size": 64, "data.val_image_size": 96,
    }  # fmt: skip
    config = TrainConfig().replace_keys(changes)
    assert TrainConfig.from_json(config.to_json()) == config != TrainConfig()
    assert json.loads(config.to_json())["schema_version"] == 4
    own = TrainConfig(epochs=3).replace_keys({"trainable.name": "net.py:train", "trainable.options": {"lr": 0.1}})
    assert TrainConfig.from_json(own.to_json()) == own and own.trainable.options == {"lr": 0.1}
    assert config.schedule.step_epochs == (1.0, 2.5)


def test_options_without_their_function_are_refused_for_no_file_keeps_them():
    with pytest.raises(ConflictError, match=r"of the function trainable.name; got {'lr': 0.1} without a name. Write"):
        TrainConfig().replace_keys({"trainable.options": {"lr": 0.1}})


def test_a_short_key_in_a_file_is_refused_with_the_whole_one():
    with pytest.raises(ConfigError, match="got 'lr'. Did you mean 'optimizer.peak_lr'?"):
        TrainConfig.from_dict({"lr": 0.1})


@pytest.mark.parametrize(
    ("changes", "rule", "value"),
    [
        ({"epochs": 0}, "epochs must be 1", "0"),
        ({"epochs": 2.5}, "whole number", "2.5"),
        ({"epochs": True}, "whole number", "True"),
        ({"seed": -1}, "seed", "-1"),
        ({"precision": "fp8"}, "precision must be one of", "fp8"),
        ({"label_smoothing": 1.0}, "label_smoothing", "1.0"),
        ({"optimizer.name": "lras"}, "lars", "lras"),
        ({"optimizer.peak_lr": 0.0}, "peak_lr", "0.0"),
        ({"larc": "clipp"}, "optimizer.larc must be one of off, clip, trust", "'clip'"),
        ({"min_trust_ratio": 2.0, "max_trust_ratio": 1.0}, "min_trust_ratio must not exceed", "got 2 and 1"),
        ({"optimizer.peak_lr": float("nan")}, "peak_lr", "nan"),
        ({"optimizer.peak_lr": float("inf")}, "peak_lr", "inf"),
        ({"optimizer.momentum": 1.0}, "momentum", "1.0"),
        ({"optimizer.momentum": 0.0}, "Nesterov needs momentum", "0.0"),
        ({"optimizer.weight_decay": -1e-4}, "weight_decay", "-0.0001"),
        ({"schedule.warmup_epochs": 13.0}, "warmup_epochs must not exceed epochs", "13"),
        ({"loss": "mse"}, "loss must be one of", "mse"),
        ({"ema_decay": 1.0}, "ema_decay", "1.0"),
        ({"schedule.warmup_steps": 3, "schedule.warmup_epochs": 1.0}, "in steps or in epochs", "3"),
        ({"schedule.name": "step"}, "needs schedule.step_epochs", "none"),
        ({"schedule.step_epochs": [3.0, 1.0]}, "must rise", "3.0"),
        ({"batch.global_size": 1}, "global_size", "1"),
        ({"batch.micro_size": 48}, "must divide", "48"),
        ({"data.image_size": 4}, "image_size", "4"),
        ({"model.stem": "tiny"}, "model.stem", "tiny"),
        *(({"data.subset": v}, "data.subset must be above 0 and at most 1", f"{v}") for v in (0.0, -0.1, 1.5)),
        *(({"data.holdout": v}, "data.holdout must be at least 0 and below 1", "0.5") for v in (-0.1, 1.0, 2.0)),
        *(({"data.augment.repeats": v}, "augment.repeats must be 1 to 64", f"{v}") for v in (0, 65)),
        ({"data.loader.name": "dali"}, "data.loader.name", "dali"),
        ({"data.loader.workers": -2}, "data.loader.workers", "-2"),
        *(
            ({f"data.{key}": v}, f"data.{key} must be", f"{v}")
            for key in ("augment.random_erasing", "mix.mixup_alpha", "mix.cutmix_alpha")
            for v in (-0.1, float("nan"), 1e9)
        ),
        ({"data.augment.policy": "trivail"}, "Did you mean 'trivial'", "trivail"),
        ({"data.augment.rand_ops": 0}, "data.augment.rand_ops must be 1 to 16", "0"),
        ({"data.augment.rand_magnitude": 31}, "data.augment.rand_magnitude must be 0 to 30", "31"),
        ({"data.augment.rand_magnitude_std": -1.0}, "data.augment.rand_magnitude_std must be", "-1"),
        ({"data.augment.rand_probability": 0.0}, "data.augment.rand_probability must be", "0"),
        ({"lr": 10**400}, "a number", "0000"),
        ({"schedule": "step", "step_epochs": [1, float("nan")]}, "schedule.step_epochs must rise", "nan"),
        ({"metrics": "f1"}, "metrics must be a list of words; got 'f1'. Write metrics=[\"", "f1"),
    ],
)
def test_impossible_values_are_refused_in_one_line_with_rule_value_and_fix(changes, rule, value):
    with pytest.raises(ConfigError) as refused:
        TrainConfig().replace_keys(changes)
    message = str(refused.value)
    assert rule in message and value in message and "\n" not in message
    assert message.rstrip().endswith((".", "?")) and message.count(". ") >= 1, "a fix follows the rule"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"config": {"epochs": 9', "Expecting"),
        (b'{"epochs": 0}', "epochs must be"),
        (b'{"lr": 1}', "'lr'"),
        (b'{"schema_version": 2}', "schema 4; got 2"),
        (b'{"config": {"epochs": 9, "seed": 1, "epochs": 5}}', "the key 'epochs' stands twice"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"model": {"name": "\xe4"}}', "not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_named_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))}: .*{re.escape(reason)}"):
        read_config(path)


def test_a_file_from_an_editor_of_windows_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{\r\n"epochs": 9\r\n}\r\n')
    assert read_config(path) == TrainConfig(epochs=9)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("peek_lr", "peak_lr"),
        ("optimizer.momentun", "optimizer.momentum"),
        ("epoch", "epochs"),
        ("optimizer.lr", "optimizer.peak_lr"),
        ("optimiser.lr", "optimizer.peak_lr"),
        ("lable_smoothing", "label_smoothing"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(typed, meant):
    with pytest.raises(ConfigError, match=meant):
        resolve_key(typed)
    with pytest.raises(ConfigError, match="no such configuration key"):
        TrainConfig.from_dict({"optimizer": {typed.rpartition(".")[2]: 1}})


def test_assignments_as_people_type_them():
    typed = ["epochs=30", "peak_lr=.3", "nesterov=False", "schedule=step", "step_epochs=[30, 60]", "data.name=./x=y"]
    assert parse_assignments(typed) == {
        "epochs": 30,
        "optimizer.peak_lr": 0.3,
        "optimizer.nesterov": False,
        "schedule.name": "step",
        "schedule.step_epochs": (30.0, 60.0),
        "data.name": "./x=y",
    }
    for wrong in (["epochs"], ["=3"], ["epochs=3", "epochs=4"], ["epochs=three"], ["optimizer=1", "optimizer.name=2"]):
        with pytest.raises(ConfigError):
            parse_assignments(wrong)


def test_numbers_of_numpy_are_pythons_own():
    """A user's space may compute with them."""
    given = {"batch": np.int64(64), "lr": np.float64(0.5), "nesterov": np.bool_(True), "epochs": np.array(3)}
    config = TrainConfig().replace_keys({**given, "model.options.width": np.int32(8)})
    assert config == TrainConfig().replace_keys(
        {"batch": 64, "lr": 0.5, "nesterov": True, "epochs": 3, "model.options.width": 8}
    )
    assert TrainConfig.from_json(config.to_json()) == config


def test_values_of_python_are_those_that_an_option_of_a_user_gets():
    """The word "False" would count as true in her code."""
    values = {"flag": False, "norm": None, "sizes": [8, 16], "names": ["a"], "word": "relu"}
    given = {f"model.options.{name}": value for name, value in values.items()}
    assert parse_assignments(written_assignments(given)) == given
    assert parse_assignments([f"{key}={given[key]}" for key in given if "names" not in key]).items() <= given.items()
    words = {
        f"model.options.w{i}": word for i, word in enumerate(("true", "null", "None", "1e3", "8", '"q"', "", " a "))
    }
    assert parse_assignments(written_assignments(words)) == words, "a choice of a space may be such a word"
    assert written_assignments({"batch": np.int64(64), "sizes": (8, 16)}) == ["batch=64", "sizes=[8, 16]"]


@pytest.mark.parametrize("global_size", [2, 96, 250, 257, 514, 771, 1000, 1024, 8192])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("largest", [1, 64, 256])
def test_a_split_gives_the_global_batch_exactly_or_is_refused(global_size, workers, largest):
    batch = BatchConfig(global_size, max_micro_size=largest)
    if global_size % workers:
        with pytest.raises(ConfigError, match="divide over the workers") as refused:
            batch.split(workers)
        _accepts_the_fix(refused.value, largest, workers)
        return
    share = global_size // workers
    fitting = max(m for m in range(1, largest + 1) if share % m == 0)
    least = largest // 8 if share > largest > 8 else min(2, largest)  # BatchNorm cannot train with one image
    if fitting < least:
        with pytest.raises(ConfigError, match=f"micro-batches of {least} to {largest} images") as refused:
            batch.split(workers)
        _accepts_the_fix(refused.value, largest, workers)
        small = int(str(refused.value).partition("batch.micro_size=")[2].split()[0])
        assert BatchConfig(global_size, micro_size=small).split(workers).accumulation_steps == share // fitting
        return
    split = batch.split(workers)
    assert split.workers * split.accumulation_steps * split.micro_size == global_size
    assert split.micro_size == fitting


def _accepts_the_fix(refused: ConfigError, largest: int, workers: int) -> None:
    """What the message says to write instead."""
    size = int(str(refused).partition("batch.global_size=")[2].split()[0].rstrip(",."))
    split = BatchConfig(size, max_micro_size=largest).split(workers)
    assert split.global_size == size and 2 * split.micro_size >= min(size // workers, largest)


def test_a_given_micro_batch_is_kept_and_must_divide_over_the_workers():
    assert BatchConfig(1024, micro_size=64).split(4).accumulation_steps == 4
    with pytest.raises(ConfigError, match="workers × micro_size"):
        BatchConfig(96, micro_size=32).split(2)
