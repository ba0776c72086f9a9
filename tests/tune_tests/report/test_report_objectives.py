"""Reports of searches for something else than one accuracy: several objectives, a target, a loss."""

from __future__ import annotations

import re
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.tune.report.page import report_page
from bigbatch.tune.report.recorded_study import RecordedStudy
from bigbatch.tune.study.objectives import Objectives, read_objectives
from bigbatch.tune.study.summary import StudySummary
from bigbatch.tune.study.target import UNREACHED_H


def searched(objectives: Objectives, values: list[tuple[float, ...]]) -> RecordedStudy:
    """A study in which each trial finished with these values."""
    study = optuna.create_study(directions=objectives.directions)
    for i, found in enumerate(values):
        trial = study.ask()
        trial.suggest_float("rate", 0.1, 1.0)
        optimizer = {"name": "sgd", "peak_lr": 0.1 * (i + 1), "momentum": 0.9}
        trial.set_user_attr("config", {"epochs": 1, "optimizer": optimizer, "batch": {"global_size": 64 << i % 3}})
        trial.set_user_attr(
            "epoch/00001", {"epoch": 1, "val_top1": 0.5 + i / 50, "val_loss": 2 - i / 10, "train_s": 1.0}
        )
        trial.set_user_attr("gpu_hours", 0.1)
        study.tell(trial, list(found), state=TrialState.COMPLETE)
    summary = StudySummary(Path("runs/s"), "done", description={"val_size": 100, "workers": 1})
    return RecordedStudy(summary, tuple(study.trials), objectives)


def seen(study: RecordedStudy) -> str:
    text = report_page([study])
    assert "could not be drawn" not in text
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_several_objectives_have_a_front() -> None:
    """Of three trials the second is beaten by the third in both; the first is dearest and best."""
    objectives = read_objectives("x", "val_top1:max,gpu_hours:min", 10)
    text = seen(searched(objectives, [(0.9, 3.0), (0.7, 2.0), (0.8, 1.0)]))
    assert "The Pareto front: no other trial is better in every objective" in text
    front = text[text.index("The Pareto front") : text.index("The configuration to copy")]
    assert "0 90.0 % 3 h" in front and "2 80.0 % 1 h" in front and "70.0 %" not in front
    assert "The best trial is 0 , with 90.0 %." in text


def test_a_target_that_some_trials_missed() -> None:
    objectives = read_objectives("x", "val_top1=0.6", 10)
    text = seen(searched(objectives, [(0.5,), (UNREACHED_H + 0.1,), (0.25,)]))
    assert "The best trial is 2 , with 0.25 h." in text and "fewer are better" in text
    assert str(UNREACHED_H) not in text and "1,000,000" not in text


@pytest.mark.parametrize("text", ["val_loss:min", "epoch_s:min", "memory_bytes:min", "images_per_s:max"])
def test_another_metric_has_its_own_units(text: str) -> None:
    objectives = read_objectives("x", text, 10)
    words = seen(searched(objectives, [(2.0 + i / 7,) for i in range(12)]))
    best = 0 if text.endswith("min") else 11
    assert f"The best trial is {best} , with {objectives.first.worth(2.0 + best / 7)}." in words
