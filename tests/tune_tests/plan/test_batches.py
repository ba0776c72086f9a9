"""``--batch`` and ``FRONTIER``: which batches a search tries and compares, and what fills no batch."""

import dataclasses
import re
from pathlib import Path

import pytest

from bigbatch.search_spaces import Workload, check_space, load_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.fitting import check_batches
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan, frontier_plan
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal

IMAGES = 1437
DIGITS = Workload("digits", train_size=IMAGES, num_classes=10, image_size=32, model="resnet18", epochs=12)


def plan_of(folder: Path, **options: object) -> SearchPlan:
    return make_plan(SearchOptions(output=str(folder), **options))  # type: ignore[arg-type]


def own_space(folder: Path, declared: str, body: str) -> str:
    path = folder / "own.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"{declared}\n\ndef space(trial, workload):\n{lines}")
    return str(path)


def test_the_batches_of_the_command_line_as_people_write_them_are_the_only_ones_searched(tmp_path):
    plan = plan_of(tmp_path, batch="1K, 96 ,192,96")  # the space would list 128 to 1,024
    assert plan.ranges["global_batch_size"].choices == (96, 192, 1024)
    assert plan.frontier is not None and plan.frontier.values == (96, 192, 1024)
    for point in plan.space.initial_points(plan.workload, plan.overrides):
        config = plan.space(StandInTrial(None, point), plan.workload, plan.overrides)
        assert config.batch.global_size in (96, 192, 1024)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": "2k"}, "at most the 1,437 training images; got 2048"),
        ({"batch": "512", "set": ("batch=256",)}, "given once; got --set batch.global_size=256 and --batch 512"),
        ({"batch": "1"}, "2 images or more; got 1. Write e.g. --batch 2."),
        ({"batch": "257"}, "32 images or more; got 257. Write e.g. --batch 256."),
        ({"set": ("batch=257",)}, "of 32 to 256 images on each worker; got 257 over 1. Use batch.global_size=256"),
        ({"tolerance": "-0.5pt"}, "--tolerance is 0.5pt, 1% or a number .*; got '-0.5pt'"),
        *(
            ({"batch": text}, f"--batch takes .*; got {re.escape(repr(text))}.*--batch 2k,8k,32k")
            for text in (",", "0", "8m", "1.5k")
        ),
    ],
)
def test_batches_and_tolerances_that_cannot_be_are_refused_before_anything_starts(tmp_path, options, message):
    refusal(lambda: plan_of(tmp_path, **options), message)
    assert not list(tmp_path.iterdir())


def test_a_batch_divides_over_the_workers():
    workload = Workload("x", train_size=10_000, num_classes=10, image_size=32, model="resnet18", epochs=1, workers=3)
    with pytest.raises(ConfigError, match=r"over the 3 workers .* got 1024. Write e.g. --batch 102\d\."):
        check_batches((1024,), workload)
    check_batches((768, 1536), workload)
    check_batches((8194 // 2 * 3,), dataclasses.replace(workload, train_size=20_000))  # 17 × 241 on each worker


def test_several_batches_need_a_space_that_searches_the_batch(tmp_path):
    fixed = own_space(tmp_path, "", "return workload.config({'lr': trial.suggest_float('lr', 0.1, 1.0), 'batch': 64})")
    with pytest.raises(ConfigError, match=r"searches the batch; got space 'own'.*--batch 64"):
        plan_of(tmp_path, space=fixed, batch="64,128")
    assert plan_of(tmp_path, space=fixed, batch="128").overrides == {"batch.global_size": 128, "data.holdout": 0.5}
    whole = own_space(tmp_path, "", "return workload.config({'batch': trial.suggest_int('batch', 64, 256, step=64)})")
    assert plan_of(tmp_path, space=whole, batch="64,96").ranges["batch"].choices == (64, 96)


def test_a_resumed_search_keeps_its_batches(tmp_path):
    plan = plan_of(tmp_path, batch="256,512", tolerance="1.5pt", study="s")
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    again = plan_of(tmp_path, study="s", resume=True)
    assert (again.workload.batches, str(again.tolerance)) == ((256, 512), "1.5pt")
    with pytest.raises(ConfigError, match=r"--batch was \[256, 512\]; got \[512, 1024\]"):
        plan_of(tmp_path, study="s", resume=True, batch="512,1k")
    assert plan_of(tmp_path, study="s", resume=True, tolerance="0.2pt").tolerance.amount == 0.2


def test_large_batch_and_lr_warmup_compare_by_batch(tmp_path):
    found = plan_of(tmp_path).frontier
    assert found is not None and (found.searched, found.values) == ("global_batch_size", (128, 256, 512, 1024))
    one = plan_of(tmp_path, space="lr_warmup").frontier
    assert one is not None and (one.searched, one.values) == (None, (512,))
    several = plan_of(tmp_path, space="lr_warmup", batch="256,1024").frontier
    assert several is not None and several.values == (256, 1024)
    assert plan_of(tmp_path, space="smoke").frontier is None


@pytest.mark.parametrize(
    ("suggestion", "values"),
    [
        ("trial.suggest_categorical('x', [8, 2, 4])", (2, 4, 8)),
        ("trial.suggest_categorical('x', ['poly', 'cosine'])", ("poly", "cosine")),
        ("trial.suggest_int('x', 2, 8, step=3)", (2, 5, 8)),
    ],
)
def test_an_own_space_declares_a_choice_or_a_few_whole_numbers(tmp_path, suggestion, values):
    space = load_space(own_space(tmp_path, "FRONTIER = 'x'", f"{suggestion}\nreturn workload.config()"))
    found = frontier_plan(space, check_space(space, DIGITS), {})
    assert found is not None and (found.name, found.values) == ("x", values)
    pinned = frontier_plan(space, {}, {"x": values[0]})
    assert pinned is not None and (pinned.values, pinned.searched) == ((values[0],), None)


@pytest.mark.parametrize(
    ("suggestion", "message"),
    [
        ("pass", "which is in no trial"),
        (
            "trial.suggest_categorical('y', [1, 2]) == 1 and trial.suggest_int('x', 1, 2)",
            "which is in only some trials",
        ),
        ("trial.suggest_float('x', 0.0, 1.0)", "with the range 0 … 1"),
        ("trial.suggest_int('x', 1, 1000)", "with the range 1 … 1000"),
    ],
)
def test_other_frontiers_are_refused_in_one_line(tmp_path, suggestion, message):
    space = load_space(own_space(tmp_path, "FRONTIER = 'x'", f"{suggestion}\nreturn workload.config()"))
    assert "FRONTIER" in refusal(lambda: frontier_plan(space, check_space(space, DIGITS), {}), message)
