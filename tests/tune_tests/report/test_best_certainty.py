"""A search of one batch: which trial the report calls the best, and how certain it says that is."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import binomtest

from bigbatch.tune.report.answer_section import answer_section
from bigbatch.tune.report.figure_book import FigureBook
from bigbatch.tune.report.recorded_study import RecordedStudy
from bigbatch.tune.report.trial_points import StudyPoints
from bigbatch.tune.study.summary import StudySummary
from bigbatch.tune.study.tables import EPOCH_ATTR
from bigbatch.tune.study.trial_facts import CONFIRMS_ATTR, SEED_ATTR

ABOUT = {"val_size": 200, "holdout_size": 100}


def trial_of(number: int, value: float, held: float, **attrs: object) -> FrozenTrial:
    record = {"epoch": 1, "val_top1": value, "holdout_top1": held}
    config = {"optimizer": {"name": "sgd", "peak_lr": 0.1 + number}}
    return FrozenTrial(
        number=number, trial_id=number, state=TrialState.COMPLETE, value=value, datetime_start=datetime(2026, 11, 1),
        datetime_complete=datetime(2026, 11, 1), params={}, distributions={}, system_attrs={}, intermediate_values={},
        user_attrs={"config": config, f"{EPOCH_ATTR}00001": record, **attrs},
    )  # fmt: skip


def answer_of(*trials: FrozenTrial) -> str:
    points = StudyPoints(RecordedStudy(StudySummary(Path("s"), "done", description=ABOUT), trials))
    return answer_section(points, FigureBook(can_draw=False), "")


def test_the_best_trial_has_its_interval_and_what_it_reached_on_held_out_images() -> None:
    text = answer_of(trial_of(0, 0.9, 0.85), trial_of(1, 0.7, 0.7))
    assert "The best trial is <strong>0</strong>, with 90.0 %." in text
    images = binomtest(180, 200).proportion_ci(0.975, "exact")  # half of the error for each of two trials
    held = binomtest(85, 100).proportion_ci(0.95, "exact")
    assert f"{100 * images.low:.1f} to {100 * images.high:.1f} %: 200 images measured it" in text
    assert f"it has 85.0 % ({100 * held.low:.1f} to {100 * held.high:.1f} %)" in text


def test_the_only_finished_trial_is_the_best_of_no_choice() -> None:
    text = answer_of(trial_of(0, 0.9, 0.85))
    assert "It is the only finished trial." in text and "luck" not in text


@pytest.mark.parametrize("gap", [0, 1], ids=["journal", "table without a waiting trial"])
def test_the_trial_that_fresh_seeds_call_best_is_shown_with_its_mean(gap: int) -> None:
    searched = [trial_of(0, 0.9, 0.88), trial_of(1 + gap, 0.86, 0.86)]
    values = {0: (0.79, 0.81), 1 + gap: (0.84, 0.86)}
    runs = [
        trial_of(10 + 2 * number + seed, value, value - 0.02, **{CONFIRMS_ATTR: number, SEED_ATTR: seed})
        for number, two in values.items()
        for seed, value in enumerate(two, 1)
    ]
    text = answer_of(*searched, *runs)
    assert f"The best trial is <strong>{1 + gap}</strong>, with 85.0 %, the mean of 2 fresh seeds." in text
    assert "It had 86.0 % when it was chosen" in text and "took no part in the choice it has 83.0 %" in text
    assert f"&quot;peak_lr&quot;: {1.1 + gap}" in text, "the configuration is that of best.json"
