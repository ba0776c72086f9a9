"""Where the images that fill no global batch make a smaller last step by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbatch.search_spaces import BUILT_IN, Workload
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.last_step import last_step_in_words, left_out, suits_smaller_step
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.notes import smaller_steps
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.study.fidelity import Fidelity
from bigbatch.tune.study.store import StudyStore

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
    assert not config_at(64, data__drop_last=False).data.drop_last
    own = {"batch.global_size": 1024, "data.drop_last": True}
    assert WORKLOAD.config(own).data.drop_last  # a space that decides itself


def search_plan(folder: Path, **options: object):  # type: ignore[no-untyped-def]
    return make_plan(SearchOptions(output=str(folder), **options))  # type: ignore[arg-type]


def test_the_plan_says_so_and_names_the_batches(tmp_path: Path) -> None:
    found = smaller_steps(search_plan(tmp_path))
    assert (
        found is not None and "at batch 256, 512 and 1,024 the last images" in found and "data.drop_last=false" in found
    )
    one = smaller_steps(search_plan(tmp_path, batch="1024"))
    assert one is not None and "at batch 1,024 the last images of an epoch, 29 % of all" in one
    assert smaller_steps(search_plan(tmp_path, batch="64")) is None
    assert smaller_steps(search_plan(tmp_path, set=("drop_last=true",))) is None


def test_a_study_of_an_earlier_version_goes_on_leaving_them_out(tmp_path: Path) -> None:
    described = search_plan(tmp_path).to_dict()
    for name, smaller in (("older", {}), ("newer", {"smaller_step": True})):
        stored = {key: value for key, value in described.items() if key != "smaller_step"} | smaller
        StudyStore.create(tmp_path / name, name, stored, None).close()
        resumed = search_plan(tmp_path, resume=True, study=name)
        config = resumed.space(StandInTrial(None), resumed.workload, {"batch.global_size": 1024})
        assert config.data.drop_last is not bool(smaller)
        assert (smaller_steps(resumed) is None) is not bool(smaller)


def test_a_full_run_is_told_of_many_images_left_out_and_of_a_step_of_few() -> None:
    config = TrainConfig().replace_keys({"batch.global_size": 1024})
    found = last_step_in_words(config, DIGITS)
    assert found is not None and "413 of the 1,437 training images (29 %)" in found
    smaller = config.replace_keys({"data.drop_last": False})
    assert last_step_in_words(smaller, DIGITS) is None
    assert last_step_in_words(config, 1_281_167) is None
    few = last_step_in_words(smaller, 1_281_167)
    assert few is not None and "has 143 images, at the rate that is meant for 1,024" in few
    assert last_step_in_words(smaller, 2048) is None


def test_a_run_with_fewer_images_makes_no_step_of_few() -> None:
    """A third of digits, 479 images, leaves 223 at batch 256; 30 % leave 175, and 36 % 5."""
    config = config_at(256)
    assert not config.data.drop_last
    for images, fixed, drops in (
        (479, (), False),
        (431, (), False),
        (517, (), True),
        (517, ("data.drop_last",), False),
    ):
        runs = Fidelity("subset", images / DIGITS, 1.0, images, DIGITS, frozenset(fixed))
        assert runs.cheaper(config).data.drop_last is drops
    assert Fidelity("subset", 0.25, 1.0, 359, DIGITS).cheaper(config_at(64)).data.drop_last
