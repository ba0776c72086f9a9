"""What a resumed study keeps, whatever has become of the files and the machine that it began with."""

import json
import shutil
from pathlib import Path
from typing import Any

from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config.given import read_config, recipe_path
from bigbatch.tune.models.protocol import dimensions_of
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.knowledge import stored_knowledge
from bigbatch.tune.storage.store import StudyStore
from helpers.lone_studies import made


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    values = {"model": "resnet18", "output": str(folder / "runs"), "study": "s"}
    return make_plan(SearchOptions(**values | options))


def of_two_batches(folder: Path, study: str, **options: Any) -> SearchPlan:
    return plan_of(folder, study=study, batch="128,256", **options)


def point(plan: SearchPlan, multiplier: float) -> dict[str, Any]:
    (sgd,) = [p for p in plan.space.initial_points(plan.workload) if p["optimizer"] == "sgd"]
    return {**sgd, "global_batch_size": 128, "lr_multiplier": multiplier}


def old_study(plan: SearchPlan, multiplier: float) -> None:
    """Write a study with one finished trial of SGD."""
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    params = point(plan, multiplier)
    config = plan.space(StandInTrial(None, params), plan.workload)
    distributions = {one.name: one.distribution for one in dimensions_of(plan.ranges)}
    attrs = {"config": config.to_dict(), "epoch/00012": {"epoch": 12, "val_top1": 0.9, "val_loss": 0.1}}
    value = 0.9 if plan.objectives.text == "val_top1:max" else 0.1
    store.study.add_trial(made(params, distributions, {12: value}, **attrs))
    store.refresh(force=True)
    store.close()


def test_a_resumed_study_keeps_what_was_read_from_files_that_are_gone_whatever_is_asked_for(tmp_path: Path) -> None:
    base, given = of_two_batches(tmp_path, "base"), tmp_path / "own.json"
    old_study(base, 1.5)
    given.write_text(json.dumps({"config": read_config(recipe_path("mlperf-lars-4k")).to_dict()}))
    first: dict[str, Any] = {"enqueue": (str(given),), "warm_start": (str(base.folder),)}
    plan = of_two_batches(tmp_path, "s", **first)
    assert (
        stored_knowledge(json.loads(json.dumps(plan.to_dict())), plan.objectives.first)
        == plan.warm_start
        != ()
        != plan.enqueued
    )
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    given.unlink()
    shutil.rmtree(base.folder)
    # A job that is put back repeats its options.
    for options in ({}, first, {"enqueue": ("recipe:lamb-32k",)}):
        again = make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), **options))
        assert (again.enqueued, again.warm_start) == (plan.enqueued, plan.warm_start)


def test_study_json_has_the_losses_of_another_study_as_they_are_and_the_search_has_gains(tmp_path: Path) -> None:
    base = of_two_batches(tmp_path, "base", objective="val_loss:min")
    old_study(base, 1.5)
    plan = of_two_batches(tmp_path, "s", objective="val_loss:min", warm_start=(str(base.folder),))
    assert [curve.gains for known in plan.warm_start for curve in known.curves] == [{12: -0.1}]
    stored = json.loads(json.dumps(plan.to_dict()))
    assert [trial["values"] for known in stored["warm_start"] for trial in known["trials"]] == [[[12, 0.1]]]
    assert stored_knowledge(stored, plan.objectives.first) == plan.warm_start


def test_a_study_in_a_database_is_read_from_its_tables_as_one_with_a_journal(tmp_path: Path) -> None:
    base = of_two_batches(tmp_path, "base")
    old_study(base, 1.5)
    by_journal = of_two_batches(tmp_path, "s", warm_start=(str(base.folder),)).warm_start
    (base.folder / "optuna.journal").unlink()
    assert of_two_batches(tmp_path, "s", warm_start=(str(base.folder),)).warm_start == by_journal != ()
