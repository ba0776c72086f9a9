"""Odd command lines, run in this process: each is refused in one line that names what was typed, with exit code 2."""

import json
import os
import random
import re
import shlex
from pathlib import Path

import pytest

from bigbatch.command import main
from bigbatch.search_spaces import BUILT_IN, Workload, check_space
from bigbatch.search_spaces.check import check_parameters, read_fixed
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch import command, lr_find
from bigbatch.tune.commands.tune import tune_main
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from helpers.refusals import refused_command

TRAIN_FILE = {"epochs": 2, "model": {"name": "resnet18"}, "batch": {"global_size": 64}}
TUNE_LINES = {
    # numbers
    f"--max-epochs {'1' * 400}": "--max-epochs must be a whole number below 2^63; got",
    "--trials 99999999999999999999": "--trials must be a whole number below 2^63; got '99999999999999999999'. Write",
    "--trials many": "--trials must be a whole number; got 'many'",
    "--trials -3": "error: --trials must not be negative; got -3. Write e.g. 10.",
    "--trials": "--trials takes a value; got none",
    "--budget-gpu-hours 4h": "--budget-gpu-hours must be a number; got '4h'",
    **{
        f"--time-budget {text}": f"--time-budget is a duration above 0, with its unit; got {text!r}. Write e.g. 4h"
        for text in ("soon", "0", "30m4h", "1h30", "4", "-1h")
    },
    "--subset -10%": "--subset must not be negative; got -10%",
    "--batch 128,-1": "--batch takes numbers of images above 0, with commas between them; got '128,-1'",
    "--subset ten%": "--subset must be a part of the whole; got 'ten%'. Write e.g. 0.1 or 10%.",
    "--holdout half": "--holdout must be a part of the validation images, or none; got 'half'. Write e.g. 50%.",
    "--holdout 1%": "data.holdout must leave an image of each class in both parts",
    "--set validate_every=2": "a search needs the value of each epoch; got validate_every=2. Leave it out:",
    "--set holdout=0.5": "data.holdout has its own option; got --set data.holdout=0.5. Write --holdout 0.5.",
    # names
    "--strategy bayes": "Write --strategy auto.",
    "--strategy curve": "Did you mean 'curves'?",
    "--stopping pbt": "--stopping must be one of",
    "--sampler tpe": "no such option; got '--sampler'. Did you mean --strategy?",
    f"--study {'x' * 101}": "--study names a folder: at most 100 letters,",
    "--wandb yes": "got 'yes'. Write --wandb disabled, or online to send runs to the server, or offline to send",
    "--data nonexist": "data.name (--data) must be digits, cifar10, imagenette, imagewoof, imagenet, or an image "
    "folder that exists; there is no 'nonexist'. Write one of these names, or the path of an image folder.",
    "--output c.json/deep": "c.json' is no folder. Write --output with another folder.",
    "--dry-run=yes": "--dry-run takes no value; got 'yes'. Write --dry-run alone.",
    "--data -my.py:data": "--data takes a value; got none. Write one after it, one that begins with - as --data=-…;",
    "--set optimizer=SGD": "Did you mean 'sgd'?",
    "--set ema=0.9": "Did you mean 'ema_decay'?",
    "--set batch=1438": "batch.global_size must be at most the 1437 training images; got 1438. Write --set batch=1437",
    "--epochs 3": "Did you mean --max-epochs?",
    "--stage /tmp": "--stage copies packed sets; got digits",
    "--dry-run ' '": "got ' '",
    "word": "an argument must belong to an option; got 'word'",
    "--trials 3 lr=0.1": "Write --set lr=0.1.",
    "--subset 0.01%": "data.subset must leave an image of each class",
    # keys
    "--set lr": "--set takes key=value; got 'lr'",
    "--set lr=fast": "lr must be a number; got 'fast'",
    "--set lr=0": "optimizer.peak_lr must be > 0",
    "--set lr=0.1 peak_lr=0.2": "got 'optimizer.peak_lr' twice",
    "--set batch=2k": "batch must be a whole number; got '2k'. Write batch=",
    "--set optimizer=muon": "Write one of sgd, lars, lamb, adamw.",
    "--set foo=1": "no such configuration key; got 'foo'. Write e.g. lr, batch",
    "--set nesterov=maybe": "nesterov must be true or false; got 'maybe'",
    # parameters of the space
    "--set lr_multiplier=9": "lr_multiplier must be a number of 0.25 to 4 in space 'smoke'; got 9",
    "--set lr=0.1 lr_multiplier=2": "lr_multiplier'",
}
TRAIN_LINES = {
    "": "the command needs one of --config, --recipe and --model; got none. Write e.g. --config best.json.",
    "--config c.json --checkpoint-every-s -1": "--checkpoint-every-s must not be negative; got -1",
    "--config nothing.json": "nothing.json",
    "--recipe mlperf": "--recipe must be the name of a published configuration; got 'mlperf'",
}
LR_FIND_LINES = {
    "--config c.json --steps 1e9x": "--steps must be a whole number; got '1e9x'",
    "--config c.json --subset 10% --set subset=0.1": "--subset",
    "--config c.json --data digits --set data.name=digits": "Keep --data.",
}
SUBMIT_LINES = {
    "--nodes few": "-N/--nodes must be a whole number; got 'few'",
}
PROGRAMS = {
    "tune": lambda words: tune_main(["--dry-run", "--space", "smoke", *words], prog="bigbatch tune"),
    "train": command.main,
    "lr-find": lr_find.main,
    "submit": lambda words: main(["cluster", "submit", "--dry-run", "--site", "generic", *words]),
}
LINES = [
    *(("tune", line, words) for line, words in TUNE_LINES.items()),
    *(("train", line, words) for line, words in TRAIN_LINES.items()),
    *(("lr-find", line, words) for line, words in LR_FIND_LINES.items()),
    *(("submit", line, words) for line, words in SUBMIT_LINES.items()),
]


@pytest.mark.parametrize(("program", "line", "expected"), LINES, ids=[f"{p} {line}" for p, line, _ in LINES])
def test_an_odd_line_is_refused_in_one_line_that_names_what_was_typed(
    program: str, line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(TRAIN_FILE))
    said = refused_command(capsys, PROGRAMS[program], shlex.split(line))
    assert "error: " in said and expected in said and "invalid" not in said, said
    assert sorted(os.listdir()) == ["c.json"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--trials 1e1", "10 of at most 3 epochs"),
        ("--max-epochs 2.0", "of at most 2 epochs"),
        ("--subset 10%", "144 training images; 180 validation images choose"),
        ("--set subset=10%", "144 training images; 180 validation images choose"),
        ("--set batch=1e2", "batch.global_size        100 (set)"),
        ("--set lr_multiplier=1", "lr_multiplier            1.0 (set)"),
    ],
)
def test_what_people_write_for_numbers_parts_and_keys_is_taken(line, shown, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert PROGRAMS["tune"](line.split()) == 0
    assert shown in capsys.readouterr().out


def test_the_console_command_says_nothing_of_a_wrong_command_but_one_line(capsys) -> None:
    for words, said in (
        (["tun"], "Did you mean 'tune'?"),
        (["mnist"], "Write one of tune, train"),
        (["pack", "images"], "pack takes a source and a destination; got 'images'"),
        (["cluster", "submt"], "Did you mean 'submit'?"),
        (["train", "--recipe", "rsb-a2"], "Did you mean 'rsb-a3'?"),
    ):
        assert said in refused_command(capsys, main, words)


# The words that are shown

DIGITS = Workload("digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_name_in_the_plan_can_be_set(name: str) -> None:
    for one in check_space(BUILT_IN[name], DIGITS).values():
        if one.kind == "derived":
            continue
        value = one.choices[0] if one.kind == "categorical" else one.low
        fixed = check_parameters(BUILT_IN[name], DIGITS, read_fixed([f"{one.name}={value}"]))
        assert one.name not in check_space(BUILT_IN[name], DIGITS, pinned=fixed), "it is not searched any more"


def test_a_parameter_of_ones_own_space_is_fixed_also_over_a_resume(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def space(trial, workload):\n"
        "    depth = trial.suggest_int('depth', 1, 4)\n"
        "    kind = trial.suggest_categorical('kind', ['a', 'b'])\n"
        "    lr = trial.suggest_float('lr', 1e-3, 1.0, log=True)\n"
        "    return workload.config({'lr': lr * depth, 'batch_size': 64, 'warmup': 1 if kind == 'a' else 2})\n"
    )
    options = SearchOptions(space="mine.py", set=("depth=2e0", "kind=b", "wd=1e-3"))
    plan = make_plan(options)
    assert plan.overrides == {"optimizer.weight_decay": 1e-3, "depth": 2, "kind": "b", "data.holdout": 0.5}
    assert list(plan.ranges) == ["lr"]
    config = plan.space(StandInTrial(random.Random(0)), plan.workload, plan.overrides)
    assert (config.schedule.warmup_epochs, config.batch.global_size) == (2, 64)
    again = SearchOptions(set=("depth=3",)).over(options.kept())
    assert again.set == ("kind=b", "wd=1e-3", "depth=3")
    for wrong, said in (
        ("depth=5", "depth must be a whole number of 1 to 4"),
        ("depth=1.5", "depth must be a whole number"),
        ("kind=c", "kind must be one of a, b"),
        (
            "lr_multiplier=1",
            "got 'lr_multiplier'. Write e.g. lr, batch, warmup or epochs; docs/training.md lists all keys. "
            "Space 'mine' searches depth, kind, lr.",
        ),
        ("dept=2", "Did you mean 'depth'?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            make_plan(SearchOptions(space="mine.py", set=(wrong,)))


def test_a_space_may_return_the_words_but_not_one_key_twice() -> None:
    config = DIGITS.config({"lr": 0.3, "wd": 1e-3, "warmup": 1, "smoothing": 0.1, "batch": 64, "momentum": 0.8})
    assert (config.optimizer.peak_lr, config.optimizer.weight_decay, config.optimizer.momentum) == (0.3, 1e-3, 0.8)
    assert (config.schedule.warmup_epochs, config.label_smoothing, config.batch.global_size) == (1, 0.1, 64)
    with pytest.raises(ConfigError, match="got 'optimizer.peak_lr' under two names"):
        DIGITS.config({"lr": 0.3, "learning_rate": 0.4})
    with pytest.raises(ConfigError, match="no such configuration key; got 'lr_multiplier'"):
        DIGITS.config({"lr_multiplier": 1.0})
