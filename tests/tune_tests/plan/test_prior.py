"""``--find-lr`` moves the searched rates; ``--warm-start`` keeps other studies' rates."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bigbatch.search_spaces.priors import peak_lr_centre
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.given import read_config, recipe_path
from bigbatch.train_loop.launch.lr_find import range_test, write_range_test
from bigbatch.tune.models.protocol import dimensions_of
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.prior import plan_with_tests, range_test_file, wanted_tests
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.knowledge import stored_knowledge
from bigbatch.tune.storage.store import StudyStore
from helpers.lone_studies import made

FOUND = range_test(lambda rate: 1 / (1 + rate) + rate**2, 1e-3, 100.0, 60)
"""Of a curve made by hand."""


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    values = {"model": "resnet18", "output": str(folder / "runs"), "study": "s"}
    return make_plan(SearchOptions(**values | options))


def after_test(plan: SearchPlan, **changes: Any) -> SearchPlan:
    """The plan after a range test of a configuration with these changes."""
    config = TrainConfig().replace_keys({"model.name": "resnet18", "batch.global_size": 256, **changes})
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_range_test(range_test_file(plan.folder, config.optimizer.name), config, FOUND)
    return plan_with_tests(plan, [config.optimizer.name])


def measured(plan: SearchPlan) -> SearchPlan:
    """The plan once its range tests have been made."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for name, config in wanted_tests(plan).items():
        write_range_test(range_test_file(plan.folder, name), config, FOUND)
    return plan_with_tests(plan, list(wanted_tests(plan)))


def rate(plan: SearchPlan, optimizer: str, batch: int, **params: Any) -> TrainConfig:
    point = {"optimizer": optimizer, "global_batch_size": batch, "lr_multiplier": 1.0, **params}
    return plan.space(StandInTrial(None, fixed=point), plan.workload)


def test_the_centre_is_the_suggestion_at_the_tests_batch_and_momentum(tmp_path: Path) -> None:
    without, suggestion = plan_of(tmp_path), FOUND.suggestion
    plan = after_test(without, **{"optimizer.name": "sgd", "momentum": 0.95})
    assert rate(plan, "sgd", 256, one_minus_momentum=0.05).optimizer.peak_lr == pytest.approx(suggestion)
    twice = rate(plan, "sgd", 512, one_minus_momentum=0.05).optimizer.peak_lr
    assert twice == pytest.approx(2 * suggestion), "from there on Goyal's linear rule holds"
    for other in ("lars", "lamb"):
        assert rate(plan, other, 256) == rate(without, other, 256), "the test says nothing of other optimizers"


@pytest.mark.parametrize("trust_coefficient", [0.001, 0.02])
def test_lars_keeps_the_size_of_its_step_whatever_the_tests_trust_coefficient(
    tmp_path: Path, trust_coefficient: float
) -> None:
    changes = {"optimizer.name": "lars", "trust_coefficient": trust_coefficient}
    plan = after_test(plan_of(tmp_path), **changes)
    found = rate(plan, "lars", 256, one_minus_momentum=0.1).optimizer
    assert found.peak_lr * found.trust_coefficient == pytest.approx(FOUND.suggestion * trust_coefficient)


def test_a_resumed_study_keeps_what_was_read_from_files_that_are_gone_whatever_is_asked_for(tmp_path: Path) -> None:
    base, given = of_two_batches(tmp_path, "base"), tmp_path / "own.json"
    old_study(base, 1.5)
    given.write_text(json.dumps({"config": read_config(recipe_path("mlperf-lars-4k")).to_dict()}))
    first: dict[str, Any] = {"enqueue": (str(given),), "warm_start": (str(base.folder),)}
    plan = of_two_batches(tmp_path, "s", **first)
    assert stored_knowledge(json.loads(json.dumps(plan.to_dict()))) == plan.warm_start != () != plan.enqueued
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    given.unlink()
    shutil.rmtree(base.folder)
    # A job that is put back repeats its options.
    for options in ({}, first, {"enqueue": ("recipe:lamb-32k",)}):
        again = make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), **options))
        assert (again.enqueued, again.warm_start) == (plan.enqueued, plan.warm_start)


def test_what_set_fixes_counts_for_the_centre(tmp_path: Path) -> None:
    tested = {"optimizer.name": "sgd", "momentum": 0.95, "batch.global_size": 512}
    plan = plan_of(tmp_path, space="lr_warmup", set=("optimizer=sgd", "momentum=0.95"))
    plan = after_test(plan, **tested)
    pinned = StandInTrial(None, fixed={"global_batch_size": 512, "lr_multiplier": 1.0})
    assert plan.space(pinned, plan.workload, plan.overrides).optimizer.peak_lr == pytest.approx(FOUND.suggestion)
    plan = plan_of(tmp_path, study="t", set=("trust_coefficient=0.02",))
    plan = after_test(plan, **{"optimizer.name": "lars", "trust_coefficient": 0.02})
    point = {"optimizer": "lars", "global_batch_size": 256, "lr_multiplier": 1.0, "one_minus_momentum": 0.1}
    found = plan.space(StandInTrial(None, fixed=point), plan.workload, plan.overrides).optimizer
    assert (found.peak_lr, found.trust_coefficient) == (pytest.approx(FOUND.suggestion), 0.02)


def test_a_network_that_the_cluster_decides_is_not_guessed_in_the_study(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, model=None, address="127.0.0.1:6379")
    assert plan.model_was_auto and plan.to_dict()["model"] is None
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()  # and the search is killed while it joins
    options = SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), address="127.0.0.1:6379")
    assert make_plan(options).model_was_auto


OWN_SPACE = """
def space(trial, workload):
    return workload.config({"optimizer": "sgd", "peak_lr": trial.suggest_float("lr", 0.1, 1.0)})
"""


def test_each_optimizer_is_tested_at_the_centre_of_its_prior(tmp_path: Path) -> None:
    tests = wanted_tests(plan_of(tmp_path, find_lr=True, max_epochs=12))
    assert set(tests) == {"lars", "lamb", "sgd"}
    for name, config in tests.items():
        assert (config.optimizer.name, config.batch.global_size) == (name, 128), "the smallest batch: the cheapest"
        momentum = config.optimizer.momentum if name != "lamb" else 0.9
        assert config.optimizer.peak_lr == pytest.approx(peak_lr_centre(name, 128, 12 * (1437 // 128), momentum))


def test_the_pinned_optimizer_alone_is_tested_and_at_the_pinned_batch(tmp_path: Path) -> None:
    assert wanted_tests(plan_of(tmp_path)) == {}
    plan = plan_of(tmp_path, find_lr=True, set=("optimizer=lamb",), batch="512")
    assert {name: config.batch.global_size for name, config in wanted_tests(plan).items()} == {"lamb": 512}
    assert measured(plan).ranges["lr_multiplier"].high == 4.0, "no other needs a test"


def test_the_search_is_around_what_the_tests_suggest_and_narrower(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, find_lr=True)
    after = measured(plan)
    assert (after.ranges["lr_multiplier"].low, after.ranges["lr_multiplier"].high) == (1 / 4, 4.0)
    for name in wanted_tests(plan):
        for point in after.space.initial_points(after.workload):
            if point["optimizer"] == name:
                point = {**point, "global_batch_size": 128, "one_minus_momentum": 0.1}
                config = after.space(StandInTrial(None, point), after.workload)
                assert config.optimizer.peak_lr == pytest.approx(FOUND.suggestion)
    assert after.identity()["lr_factors"] == after.workload.lr_factors != {}


def test_a_test_that_never_exploded_or_does_not_exist_says_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, find_lr=True)
    tests = wanted_tests(plan)
    plan.folder.mkdir(parents=True)
    write_range_test(range_test_file(plan.folder, "sgd"), tests["sgd"], FOUND)
    never = dataclasses.replace(FOUND, exploded_at=None)
    write_range_test(range_test_file(plan.folder, "lars"), tests["lars"], never)
    after = plan_with_tests(plan, list(tests))
    assert set(after.workload.lr_factors) == {"sgd"}
    assert after.ranges["lr_multiplier"].high == 16.0


def test_a_resumed_study_keeps_the_rates_and_asks_for_no_more_tests(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, find_lr=True)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    resume = SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"))
    again = make_plan(resume)
    assert set(wanted_tests(again)) == {"lars", "lamb", "sgd"}, "it was killed before its tests"
    after = measured(again)
    store = StudyStore.open(plan.folder, None)
    store.describe(after.to_dict())
    store.close()
    for options in (resume, dataclasses.replace(resume, find_lr=True)):  # a requeued job repeats its options
        last = make_plan(options)
        assert last.workload == after.workload and wanted_tests(last) == {}


def test_what_find_lr_refuses_is_one_line(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_SPACE)
    for options in ({"space": str(own)}, {"set": ("lr=1",)}):
        with pytest.raises(ConfigError, match="--find-lr needs a space that searches learning rates"):
            plan_of(tmp_path, find_lr=True, **options)
    plan = plan_of(tmp_path)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    with pytest.raises(ConfigError, match="--find-lr is for the beginning of a study"):
        make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), find_lr=True))


def of_two_batches(folder: Path, study: str, **options: Any) -> SearchPlan:
    return plan_of(folder, study=study, batch="128,256", **options)


def point(plan: SearchPlan, multiplier: float) -> dict[str, Any]:
    (sgd,) = [p for p in plan.space.initial_points(plan.workload) if p["optimizer"] == "sgd"]
    return {**sgd, "global_batch_size": 128, "lr_multiplier": multiplier}


def old_study(plan: SearchPlan, multiplier: float) -> float:
    """Write a study with one finished trial of SGD. Returns the rate that it trained with."""
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    params = point(plan, multiplier)
    config = plan.space(StandInTrial(None, params), plan.workload)
    distributions = {one.name: one.distribution for one in dimensions_of(plan.ranges)}
    attrs = {"config": config.to_dict(), "epoch/00012": {"epoch": 12, "val_top1": 0.9, "val_loss": 0.1}}
    store.study.add_trial(made(params, distributions, {12: 0.9}, **attrs))
    store.refresh(force=True)
    store.close()
    return config.optimizer.peak_lr


def known_rates(plan: SearchPlan) -> list[float]:
    trials = [trial for study in plan.warm_start for trial in study.trials]
    return [plan.space(StandInTrial(None, dict(t.params)), plan.workload).optimizer.peak_lr for t in trials]


def test_a_rate_that_was_found_stays_the_rate_after_a_range_test(tmp_path: Path) -> None:
    base = of_two_batches(tmp_path, "base")
    moved = measured(of_two_batches(tmp_path, "look", find_lr=True))
    factor = moved.workload.lr_factors["sgd"]
    rate = old_study(base, min(16.0, max(1 / 16, 2.0 * factor)))  # within the new range, which is around the factor
    plan = of_two_batches(tmp_path, "new", find_lr=True, warm_start=(str(base.folder),))
    assert known_rates(plan) == pytest.approx([rate])
    after = measured(plan)
    assert after.workload.lr_factors["sgd"] != 1
    assert known_rates(after) == pytest.approx([rate])


def test_a_rate_outside_of_the_new_range_is_left_out(tmp_path: Path) -> None:
    base = of_two_batches(tmp_path, "base")
    factor = measured(of_two_batches(tmp_path, "look", find_lr=True)).workload.lr_factors["sgd"]
    old_study(base, 16.0 if factor < 1 else 1 / 16)
    plan = of_two_batches(tmp_path, "new", find_lr=True, warm_start=(str(base.folder),))
    assert len(known_rates(plan)) == 1 and measured(plan).warm_start == ()


def test_a_study_with_range_tests_teaches_one_without(tmp_path: Path) -> None:
    base = measured(of_two_batches(tmp_path, "base", find_lr=True))
    shutil.rmtree(base.folder)
    rate = old_study(base, 1.5)
    plan = of_two_batches(tmp_path, "new", warm_start=(str(base.folder),))
    assert known_rates(plan) == pytest.approx([rate])
