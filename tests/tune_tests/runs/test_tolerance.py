"""``--tolerance``: its units, its words, and what is refused."""

from __future__ import annotations

import math

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.objective import Objective, read_tolerance

TOP1, LOSS, OWN = Objective(), Objective("val_loss", "minimize", 2.3), Objective("val_iou", "maximize", math.nan)


@pytest.mark.parametrize(
    ("text", "objective", "best", "allowance", "words"),
    [
        (None, TOP1, 0.97, 0.005, "0.5 points"),
        ("0.5pt", TOP1, 0.5, 0.005, "0.5 points"),
        ("1pt", TOP1, 0.5, 0.01, "1 point"),
        ("1%", TOP1, 0.5, 0.005, "1 %"),
        ("0.02", TOP1, 0.5, 0.02, "2 points"),
        (None, LOSS, 0.001, 0.00001, "1 %"),
        ("0.02", LOSS, 0.3, 0.02, "0.02"),
        ("2 %", OWN, -4.0, 0.08, "2 %"),
        ("0", TOP1, 0.9, 0.0, "0 points"),
        ("0pt", TOP1, 0.9, 0.0, "0 points"),
    ],
)
def test_a_tolerance_has_a_unit(text, objective, best, allowance, words):
    found = read_tolerance(text, objective)
    assert found.allowance(best) == pytest.approx(allowance)
    assert found.words(objective.metric) == words
    assert read_tolerance(str(found), objective) == found


@pytest.mark.parametrize(
    ("text", "objective", "message"),
    [
        ("-1pt", TOP1, "must not be negative; got -1pt"),
        ("half", TOP1, "such as 0.5pt or 1%; got 'half'"),
        ("nan", TOP1, "got 'nan'"),
        ("inf", TOP1, "got 'inf'"),
        ("", TOP1, "got ''"),
        ("0.5", TOP1, "is 50 points; got 0.5. Write 0.5pt for 0.5 points"),
        ("0.5pt", LOSS, "in points is for a proportion; got 0.5pt for val_loss. Write e.g. 1%"),
        ("0.5pt", OWN, "in points is for a proportion"),
        (
            "0.02",
            OWN,
            "needs a unit, because none is known of val_iou; got 0.02. Write a part of the best value, e.g. 1%",
        ),
        ("1e999pt", TOP1, "must be a finite number"),
        ("200pt", TOP1, "would make every value an answer"),
        ("500%", LOSS, "would make every value an answer"),
    ],
)
def test_what_is_no_tolerance_is_refused_in_one_line(text, objective, message):
    with pytest.raises(ConfigError) as refused:
        read_tolerance(text, objective)
    assert message in str(refused.value) and "\n" not in str(refused.value)
