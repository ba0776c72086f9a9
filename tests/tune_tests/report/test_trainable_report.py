"""A study over a whole training function, as ``bigbatch show`` and the report tell of it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from bigbatch.tune.commands.report import report_main
from bigbatch.tune.commands.show import show_main
from bigbatch.tune.storage.store import StudyStore

LR = optuna.distributions.FloatDistribution(0.1, 1.0)


def finished_trial(number: int) -> optuna.trial.FrozenTrial:
    """The rate decides, and nothing else was measured."""
    lr = 0.1 * (number + 1)
    config = {
        "schema_version": 2,
        "epochs": 2,
        "seed": 0,
        "trainable": {"name": "/a/my.py:train", "options": {"lr": lr}},
    }
    records = {
        f"epoch/{epoch:05d}": {"epoch": epoch, "epochs": 2, "train_s": 1.0, "metrics": {"score": lr * epoch}}
        for epoch in (1, 2)
    }
    return create_trial(
        state=TrialState.COMPLETE,
        value=2 * lr,
        params={"lr": lr},
        distributions={"lr": LR},
        intermediate_values={1: lr, 2: 2 * lr},
        user_attrs={"config": config, **records},
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    facts = {"trainable": "/a/my.py:train", "objective": "score:max", "space": "my", "data": "own", "max_epochs": 2,
             "model": "my.py:train", "num_classes": 0, "train_size": 0, "trials": 9}  # fmt: skip
    store = StudyStore.create(tmp_path / "s", "s", facts, None)
    for number in range(9):
        store.study.add_trial(finished_trial(number))
    store.refresh(force=True)
    store.close()
    return tmp_path / "s"


def test_show_has_the_functions_parameters_and_says_what_to_do_with_the_best(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_main([str(study)]) == 0
    said = capsys.readouterr().out
    assert (
        "trainable  /a/my.py:train" in said and "The best is trial 8: score 1.8 on the examples that chose it" in said
    )
    assert "call my.py:train with it" in said and "bigbatch train" not in said and "images" not in said


def test_the_report_shows_the_config_to_copy_and_no_settings_of_our_own_loop(study: Path) -> None:
    assert report_main([str(study), "-o", str(study / "r.html")]) == 0
    page = (study / "r.html").read_text()
    text = page.partition("<body")[2].partition("<script")[0]
    assert html.escape(json.dumps({"lr": 0.9}, indent=2)) in text
    assert "/a/my.py:train" in text
    for word in ("global batch", "peak learning rate", "bigbatch train", "training images"):
        assert word not in text.partition("What was asked")[0].partition("The answer")[2], word
