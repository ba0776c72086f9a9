"""``--holdout``: which validation images choose among the trials of a search."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.tune.plan.arguments import parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.holdout import divide_validation
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.store import StudyStore


def plan_of(folder: Path, *words: str) -> SearchPlan:
    options = SearchOptions(**parse_options(tune_parser(""), ["--output", str(folder), *words]))  # type: ignore[arg-type]
    return make_plan(options)


def begin(plan: SearchPlan, drop: tuple[str, ...] = ()) -> None:
    """The study as its first driver writes it; without the keys of study.json that ``drop`` names."""
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    path = plan.folder / "study.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in stored.items() if key not in drop}))


def test_a_search_on_digits_keeps_half_of_the_validation_images_for_its_report(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert (plan.data.train_size, plan.data.val_size, plan.data.holdout_size) == (1437, 180, 180)
    assert plan.overrides["data.holdout"] == 0.5
    assert (plan.identity()["val_size"], plan.identity()["holdout_size"]) == (180, 180)


@pytest.mark.parametrize(("word", "sizes"), [("none", (360, 0)), ("20%", (288, 72)), ("0.25", (270, 90))])
def test_the_part_can_be_given(word: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "--holdout", word)
    assert (plan.data.val_size, plan.data.holdout_size) == sizes
    assert plan.overrides.get("data.holdout", 0.0) == sizes[1] / 360


@pytest.mark.parametrize(
    ("images", "classes", "divided"),
    [(199, 10, False), (200, 10, True), (3999, 1000, False), (4000, 1000, True), (50_000, 1000, True)],
)
def test_only_enough_images_are_divided_by_default(images: int, classes: int, divided: bool) -> None:
    data = dataclasses.replace(describe_data_set(DataConfig()), val_size=images, num_classes=classes)
    found, overrides = divide_validation(data, {}, None)
    assert found.holdout_size == (round(images / 2) if divided else 0)
    assert found.val_size + found.holdout_size == images and ("data.holdout" in overrides) == divided


def test_a_study_keeps_its_holdout(tmp_path: Path) -> None:
    for study, words in (("default", ()), ("none", ("--holdout", "none")), ("fifth", ("--holdout", "20%"))):
        before = plan_of(tmp_path, "--study", study, *words)
        begin(before)
        again = plan_of(tmp_path, "--study", study, "--resume")
        assert again.data == before.data and again.overrides == before.overrides
    with pytest.raises(ConfigError, match=r"--holdout was 0\.2; got 0\.5\. Leave --holdout out"):
        plan_of(tmp_path, "--study", "fifth", "--resume", "--holdout", "50%")
