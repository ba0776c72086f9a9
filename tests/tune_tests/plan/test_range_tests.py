"""``--find-lr``: which tests a search makes, what follows from them, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bigbatch.search_spaces.priors import peak_lr_centre
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch.lr_find import range_test, write_range_test
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.prior import plan_with_tests, range_test_file, wanted_tests
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.store import StudyStore

FOUND = range_test(lambda rate: 1 / (1 + rate) + rate**2, 1e-3, 100.0, 60)
"""Of a curve made by hand."""
NEVER = dataclasses.replace(FOUND, exploded_at=None)


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    values: dict[str, Any] = {
        "output": str(folder / "runs"),
        "study": "s",
        "model": "resnet18",
        "find_lr": True,
        "max_epochs": 12,
    }
    return make_plan(SearchOptions(**values | options))


def test_each_optimizer_is_tested_at_the_centre_of_its_prior(tmp_path: Path) -> None:
    tests = wanted_tests(plan_of(tmp_path))
    assert set(tests) == {"lars", "lamb", "sgd"}
    for name, config in tests.items():
        assert (config.optimizer.name, config.batch.global_size) == (name, 128), "the smallest batch: the cheapest"
        momentum = config.optimizer.momentum if name != "lamb" else 0.9
        assert config.optimizer.peak_lr == pytest.approx(peak_lr_centre(name, 128, 12 * (1437 // 128), momentum))


def test_the_pinned_optimizer_alone_is_tested_and_at_the_pinned_batch(tmp_path: Path) -> None:
    tests = wanted_tests(plan_of(tmp_path, set=("optimizer=lamb",), batch="512"))
    assert {name: config.batch.global_size for name, config in tests.items()} == {"lamb": 512}
    assert wanted_tests(plan_of(tmp_path, find_lr=None)) == {}


def test_an_optimizer_with_a_test_is_not_tested_again(tmp_path: Path) -> None:
    config = wanted_tests(plan_of(tmp_path))["sgd"]
    write_range_test(tmp_path / "sgd.json", config, FOUND)
    assert set(wanted_tests(plan_of(tmp_path, prior_from=(str(tmp_path / "sgd.json"),)))) == {"lars", "lamb"}


def test_the_search_is_around_what_the_tests_suggest_and_narrower(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    tests = wanted_tests(plan)
    plan.folder.mkdir(parents=True)
    for name, config in tests.items():
        write_range_test(range_test_file(plan.folder, name), config, FOUND)
    after = plan_with_tests(plan, list(tests))
    assert (after.ranges["lr_multiplier"].low, after.ranges["lr_multiplier"].high) == (1 / 4, 4.0)
    for name in tests:
        for point in after.space.initial_points(after.workload):
            if point["optimizer"] == name:
                point = {**point, "global_batch_size": 128, "one_minus_momentum": 0.1}
                config = after.space(StandInTrial(None, point), after.workload)
                assert config.optimizer.peak_lr == pytest.approx(FOUND.suggestion)
    assert after.identity()["lr_factors"] == after.workload.lr_factors != {}


def test_a_test_that_never_exploded_or_does_not_exist_says_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    tests = wanted_tests(plan)
    plan.folder.mkdir(parents=True)
    write_range_test(range_test_file(plan.folder, "sgd"), tests["sgd"], FOUND)
    write_range_test(range_test_file(plan.folder, "lars"), tests["lars"], NEVER)
    after = plan_with_tests(plan, list(tests))
    assert set(after.workload.lr_factors) == {"sgd"}
    assert after.ranges["lr_multiplier"].high == 16.0


def test_a_resumed_study_keeps_the_rates_and_asks_for_no_more_tests(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    resume = SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"))
    again = make_plan(resume)
    assert set(wanted_tests(again)) == {"lars", "lamb", "sgd"}, "it was killed before its tests"
    for name, config in wanted_tests(again).items():
        write_range_test(range_test_file(plan.folder, name), config, FOUND)
    after = plan_with_tests(again, ["lars", "lamb", "sgd"])
    store = StudyStore.open(plan.folder, None)
    store.describe(after.to_dict())
    store.close()
    for options in (resume, dataclasses.replace(resume, find_lr=True)):  # a requeued job repeats its options
        last = make_plan(options)
        assert last.workload == after.workload and wanted_tests(last) == {}


def test_refusals_are_one_line(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def space(trial, workload):\n    return workload.config({'lr': trial.suggest_float('lr', 0.1, 1)})\n"
    )
    for options in ({"space": str(own)}, {"set": ("lr=1",)}):
        with pytest.raises(ConfigError, match="--find-lr needs a space that searches learning rates") as caught:
            plan_of(tmp_path, **options)
        assert "\n" not in str(caught.value)
    plan = plan_of(tmp_path, find_lr=None)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    with pytest.raises(ConfigError, match="--find-lr is for the beginning of a study"):
        make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), find_lr=True))
