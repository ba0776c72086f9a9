"""``--warm-start`` keeps the rates of other studies where range tests have moved the centres of this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.launch.lr_find import range_test, write_range_test
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.prior import plan_with_tests, range_test_file, wanted_tests
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.store import StudyStore

FOUND = range_test(lambda rate: 1 / (1 + rate) + rate**2, 1e-3, 100.0, 60)
"""Of a curve made by hand."""


def plan_of(folder: Path, study: str, **options: Any) -> SearchPlan:
    values: dict[str, Any] = {"output": str(folder / "runs"), "study": study, "model": "resnet18", "batch": "128,256"}
    return make_plan(SearchOptions(**values | options))


def point(plan: SearchPlan, multiplier: float) -> dict[str, Any]:
    (sgd,) = [p for p in plan.space.initial_points(plan.workload) if p["optimizer"] == "sgd"]
    return {**sgd, "global_batch_size": 128, "lr_multiplier": multiplier}


def distribution(plan: SearchPlan, name: str) -> BaseDistribution:
    found = plan.ranges[name]
    if found.kind == "categorical":
        return CategoricalDistribution([c for c in found.choices if isinstance(c, (int, str))])
    return FloatDistribution(found.low, found.high, log=found.log)


def old_study(plan: SearchPlan, multiplier: float, **attrs: object) -> float:
    """Write a study with one finished trial of SGD. Returns the rate that it trained with."""
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    params = point(plan, multiplier)
    config = plan.space(StandInTrial(None, params), plan.workload)
    distributions = {name: distribution(plan, name) for name in params}
    record = {"epoch": 12, "val_top1": 0.9, "val_loss": 0.1}
    user_attrs: dict[str, Any] = {"config": config.to_dict(), "epoch/00012": record, **attrs}
    store.study.add_trial(
        create_trial(
            state=TrialState.COMPLETE, value=0.9, params=params, distributions=distributions,
            intermediate_values={12: 0.9}, user_attrs=user_attrs,
        )
    )  # fmt: skip
    store.refresh(force=True)
    store.close()
    return config.optimizer.peak_lr


def known_rates(plan: SearchPlan) -> list[float]:
    configs = [
        plan.space(StandInTrial(None, dict(trial.params)), plan.workload)
        for study in plan.warm_start
        for trial in study.trials
    ]
    return [config.optimizer.peak_lr for config in configs]


def with_tests(plan: SearchPlan) -> SearchPlan:
    tests = wanted_tests(plan)
    plan.folder.mkdir(parents=True)
    for name, config in tests.items():
        write_range_test(range_test_file(plan.folder, name), config, FOUND)
    return plan_with_tests(plan, list(tests))


def test_a_rate_that_was_found_stays_the_rate_after_a_range_test(tmp_path: Path) -> None:
    base = plan_of(tmp_path, "base")
    moved = with_tests(plan_of(tmp_path, "look", find_lr=True))
    factor = moved.workload.lr_factors["sgd"]
    rate = old_study(base, min(16.0, max(1 / 16, 2.0 * factor)))  # within the new range, which is around the factor
    plan = plan_of(tmp_path, "new", find_lr=True, warm_start=(str(base.folder),))
    assert known_rates(plan) == pytest.approx([rate])
    after = with_tests(plan)
    assert after.workload.lr_factors["sgd"] != 1
    assert known_rates(after) == pytest.approx([rate])


def test_a_rate_outside_of_the_new_range_is_left_out(tmp_path: Path) -> None:
    base = plan_of(tmp_path, "base")
    factor = with_tests(plan_of(tmp_path, "look", find_lr=True)).workload.lr_factors["sgd"]
    old_study(base, 16.0 if factor < 1 else 1 / 16)
    plan = plan_of(tmp_path, "new", find_lr=True, warm_start=(str(base.folder),))
    assert len(known_rates(plan)) == 1 and with_tests(plan).warm_start == ()


def test_a_study_with_range_tests_teaches_one_without(tmp_path: Path) -> None:
    base = with_tests(plan_of(tmp_path, "base", find_lr=True))
    for file in base.folder.iterdir():
        file.unlink()
    base.folder.rmdir()
    rate = old_study(base, 1.5)
    assert known_rates(plan_of(tmp_path, "new", warm_start=(str(base.folder),))) == pytest.approx([rate])
