"""Where the images that fill no global batch make a smaller last step by themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bigbatch.search_spaces import BUILT_IN, Workload, load_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.last_step import last_step_in_words, left_out, suits_smaller_step
from bigbatch.tune.console.plan_notes import smaller_steps
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.enqueued import scaled
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan

DIGITS = 1437
WORKLOAD = Workload("digits", train_size=DIGITS, num_classes=10, image_size=32, model="resnet18", epochs=12)


@pytest.mark.parametrize(
    ("size", "batch", "images", "suits"),
    [
        (DIGITS, 1024, 413, True),  # 29 % of the images
        (DIGITS, 256, 157, True),  # 11 %
        (DIGITS, 64, 29, False),  # 2 %
        (DIGITS, 1200, 237, False),  # 16 %, but a fifth of a global batch
        (10_000, 2048, 1808, True),  # a fifth of CIFAR-10
        (1_281_167, 32_768, 3_215, False),  # ImageNet: 0.25 %
        (2048, 1024, 0, False),
        (512, 1024, 512, False),  # no step at all
        (1024, 1024, 0, False),
    ],
)
def test_it_suits_many_images_that_are_no_small_part_of_a_batch(
    size: int, batch: int, images: int, suits: bool
) -> None:
    assert (left_out(size, batch), suits_smaller_step(size, batch)) == (images, suits)


def config_at(batch: int, workload: Workload = WORKLOAD, **pinned: object) -> TrainConfig:
    keys = {"batch.global_size": batch} | {name.replace("__", "."): value for name, value in pinned.items()}
    return BUILT_IN["large_batch"](StandInTrial(None), workload, keys)


def test_a_search_trains_on_them_unless_it_is_told_otherwise() -> None:
    assert not config_at(1024).data.drop_last
    assert config_at(64).data.drop_last
    assert config_at(1024, data__drop_last=True).data.drop_last
    assert config_at(1024, dataclasses.replace(WORKLOAD, smaller_step=False)).data.drop_last
    recipe = config_at(1024)
    assert not scaled(recipe, 1024, WORKLOAD).data.drop_last
    assert scaled(recipe, 64, WORKLOAD).data.drop_last


OWN = """
def space(trial, workload):
    batch = trial.suggest_categorical("batch", [64, 1024, 1200])
    return workload.config(EXTRA).replace_keys({"batch.global_size": batch})
"""


def own_space(folder: Path, extra: str = "") -> Path:
    path = folder / "own.py"
    path.write_text(OWN.replace("EXTRA", f"{{{extra}}}"))
    return path


def test_the_batch_of_what_a_users_space_returns_decides(tmp_path: Path) -> None:
    space = load_space(str(own_space(tmp_path)))
    drops = {b: space(StandInTrial(None, {"batch": b}), WORKLOAD).data.drop_last for b in (64, 1024, 1200)}
    assert drops == {64: True, 1024: False, 1200: True}


@pytest.mark.parametrize("drops", [True, False])
def test_a_users_space_that_names_the_key_decides_itself(tmp_path: Path, drops: bool) -> None:
    path = own_space(tmp_path, f"'data.drop_last': {drops}")
    plan = search_plan(tmp_path, space=str(path))
    assert smaller_steps(plan) is None and not plan.workload.smaller_step
    for batch in (64, 1024, 1200):
        assert plan.space(StandInTrial(None, {"batch": batch}), plan.workload).data.drop_last is drops


def search_plan(folder: Path, **options: Any) -> SearchPlan:
    return make_plan(SearchOptions(output=str(folder), **options))


def test_the_plan_says_so_and_names_the_batches(tmp_path: Path) -> None:
    found = smaller_steps(search_plan(tmp_path))
    assert found is not None and "at batch 256, 512 and 1,024 the last images" in found and "drop_last=false" in found
    one = smaller_steps(search_plan(tmp_path, batch="1024"))
    assert one is not None and "at batch 1,024 the last images of an epoch, 29 % of all" in one
    own = smaller_steps(search_plan(tmp_path, space=str(own_space(tmp_path))))
    assert own is not None and "at batch 1,024 the last images" in own
    assert smaller_steps(search_plan(tmp_path, batch="64")) is None
    assert smaller_steps(search_plan(tmp_path, set=("drop_last=true",))) is None
    assert smaller_steps(search_plan(tmp_path, batch="1024", set=("max_micro_size=4",))) is None, "413 are under 512"


def test_a_full_run_is_told_of_many_images_left_out_and_of_a_step_of_few() -> None:
    config = TrainConfig().replace_keys({"batch.global_size": 1024})
    smaller = config.replace_keys({"data.drop_last": False})
    split = config.batch.split(1)
    found = last_step_in_words(config, DIGITS, split)
    assert found is not None and "413 of the 1,437 training images (29 %)" in found
    assert last_step_in_words(smaller, DIGITS, split) is None
    assert last_step_in_words(config, 1_281_167, split) is None
    few = last_step_in_words(smaller, 1_281_167, split)
    assert few is not None and "has 140 images, at the rate that is meant for 1,024" in few, "143 over 4 micro-batches"
    assert last_step_in_words(smaller, 2048, split) is None
    tiny = config.replace_keys({"batch.max_micro_size": 4}).batch.split(1)
    assert last_step_in_words(config, DIGITS, tiny) is None, "256 micro-batches get less than 2 images"
