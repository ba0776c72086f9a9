"""Choices and grids: what a study keeps, and what is refused in one line."""

import enum
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from bigbatch.search_spaces import Workload, check_space
from bigbatch.search_spaces.check import check_parameters
from bigbatch.search_spaces.registry import Space, load_space
from bigbatch.search_spaces.trial import SpaceTrial, StandInTrial
from helpers.refusals import refusal

WORKLOAD = Workload(
    data="digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=4, max_micro_size=256
)


class Word(enum.StrEnum):
    A = "a"
    B = "b"


def space_of(folder: Path, body: str, points: str = "[]") -> Space:
    lines = "".join(f"    {line}\n" for line in [*body.splitlines(), "return workload.config()"])
    text = f"import math\nimport numpy as np\n\ndef space(trial, workload):\n{lines}"
    (folder / "own.py").write_text(f"{text}\ndef initial_points(workload):\n    return {points}\n")
    return load_space(str(folder / "own.py"))


def refused(space: Space, **pinned: object) -> str:
    return refusal(lambda: check_space(space, WORKLOAD, pinned=check_parameters(space, WORKLOAD, pinned)))


@pytest.mark.parametrize(
    ("choices", "kept"),
    [
        ([None, True, "a", 0.5, 3, math.inf], [None, True, "a", 0.5, 3, math.inf]),
        (np.array([64, 128]), [64, 128]),
        ([np.float32(0.5), np.bool_(True), np.str_("x")], [0.5, True, "x"]),
        ([Word.A, Word.B], ["a", "b"]),
    ],
)
def test_each_choice_is_a_plain_value_that_a_study_keeps_as_it_is(choices: Any, kept: list[object]):
    stand_in = StandInTrial(random.Random(1))
    assert stand_in.suggest_categorical("c", choices) in kept
    assert stand_in.distributions["c"].choices == tuple(kept) == tuple(json.loads(json.dumps(kept)))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for stored in kept:
        study.enqueue_trial({"c": stored})
        trial = study.ask()
        found = SpaceTrial(trial).suggest_categorical("c", choices)
        assert (found, type(found)) == (stored, type(stored)) == (trial.params["c"], type(trial.params["c"]))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ("[0.1, math.nan]", "the choice nan, which no study can keep: a choice is None, true, false, a number"),
        ("[(3, 3), (1, 7)]", "the choice (3, 3), which no study can keep"),
        ("[{'a': 1}, {}]", "the choice {'a': 1}"),
        ("[len, max]", "the choice <built-in function len>"),
        ("[np.zeros(2)]", "the choice array"),
        ("[True, 1]", "the choices True and 1, which no study can tell apart"),
        ("[None, 'None']", "the choices None and 'None', which no study can tell apart"),
        ("[]", "no choices"),
    ],
)
def test_a_choice_that_no_study_can_keep_is_refused_in_one_line(tmp_path, choices, words):
    message = refused(space_of(tmp_path, f"trial.suggest_categorical('c', {choices})"))
    assert f"parameter 'c' has {words}" in message


GRIDS = "trial.suggest_int('j', 0, 10, step=3)\ntrial.suggest_float('x', 0, 1, step=0.3)"


def test_the_plan_says_where_a_grid_ends(tmp_path):
    ranges = check_space(space_of(tmp_path, GRIDS, "[{'j': 9, 'x': 0.9}]"), WORKLOAD)
    assert [ranges[name].describe() for name in "jx"] == ["0 … 9 by 3", "0 … 0.9 by 0.3"]
    drawn = [StandInTrial(random.Random(seed)) for seed in range(200)]
    for trial in drawn:
        trial.suggest_int("j", 0, 10, step=3)
        trial.suggest_float("x", 0, 1, step=0.3)
    assert {trial.params["j"] for trial in drawn} == {0, 3, 6, 9}
    assert {trial.params["x"] for trial in drawn} == {0.0, 0.3, 0.6, 0.9}


@pytest.mark.parametrize("point", ["{'j': 4}", "{'j': 10}", "{'x': 0.5}", "{'x': 1}"])
def test_an_initial_point_beside_the_grid_is_refused(tmp_path, point):
    assert "in initial_points" in refused(space_of(tmp_path, GRIDS, f"[{point}]"))


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        ({"j": 4}, "j must be a whole number of 0 to 9 in steps of 3"),
        ({"j": 10}, "got 10. Write e.g. --set j=0"),
        ({"x": 0.5}, "x must be a number of 0 to 0.9 in steps of 0.3"),
    ],
)
def test_set_takes_values_of_the_grid_alone(tmp_path, pinned, words):
    space = space_of(tmp_path, GRIDS)
    assert words in refused(space, **pinned)
    assert check_parameters(space, WORKLOAD, {"j": 6, "x": 0.6}) == {"j": 6, "x": 0.6}
