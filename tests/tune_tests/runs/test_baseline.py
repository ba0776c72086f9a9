"""What a constant prediction is worth in a study: what is stated, before what was measured, before chance."""

from __future__ import annotations

import math

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.tune.runs.learned import baseline_of
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.objectives import objectives_of

CLASSES = {"num_classes": 4, "are_classes": True, "overrides": {}}


def trial(*baselines: dict[str, float] | None) -> FrozenTrial:
    """With an epoch for each."""
    records = {f"epoch/{n:05d}": {"epoch": n, "val_top1": 0.5, "baseline": b} for n, b in enumerate(baselines, 1)}
    return create_trial(state=TrialState.RUNNING, user_attrs=records)


def test_what_is_stated_comes_first_then_the_first_that_was_measured_then_chance() -> None:
    trials = [trial(), trial(None), trial(None, {"val_top1": 0.6}), trial({"val_top1": 0.7, "val_iou": 0.2})]
    stated = {**CLASSES, "baseline": {"val_top1": 0.65}}
    assert baseline_of(trials, stated, Objective("val_top1")) == 0.65
    assert baseline_of(trials, CLASSES, Objective("val_top1")) == 0.6
    assert baseline_of(trials, stated, Objective("val_iou")) == 0.2, "another metric was stated"
    assert baseline_of(trials[:2], CLASSES, Objective("val_top1")) == 0.25
    assert baseline_of(trials, CLASSES, Objective("val_loss", "minimize")) == pytest.approx(math.log(4))
    assert baseline_of(trials, CLASSES, Objective("val_f1")) is None


def test_chance_is_known_of_classes_and_the_plain_loss_of_our_own_loop() -> None:
    top1, loss = Objective("val_top1"), Objective("val_loss", "minimize")
    own_loss = {**CLASSES, "overrides": {"loss": "net.py:focal"}}
    assert baseline_of([], own_loss, loss) is None and baseline_of([], own_loss, top1) == 0.25
    assert baseline_of([], {**CLASSES, "overrides": {"loss": "bce"}}, loss) == pytest.approx(math.log(4))
    assert baseline_of([], {**CLASSES, "are_classes": False}, loss) is None
    assert baseline_of([], {"num_classes": 0}, top1) is None and baseline_of([], {}, top1) is None
    function = {"trainable": "my.py:train", "num_classes": 4, "objective": "val_loss:min"}
    assert baseline_of([], function, objectives_of(function).first) is None
    assert baseline_of([], {**function, "baseline": {"val_loss": 2.5}}, objectives_of(function).first) == 2.5


@pytest.mark.parametrize("text", ["gpu_hours:min,val_loss:min", "epoch_s:min", "memory_bytes", "val_top1=0.7"])
def test_what_training_does_not_improve_has_none(text: str) -> None:
    description = {**CLASSES, "objective": text, "baseline": {"gpu_hours": 1.0, "epoch_s": 1.0, "memory_bytes": 1.0}}
    assert baseline_of([trial({"epoch_s": 1.0})], description, objectives_of(description).first) is None
