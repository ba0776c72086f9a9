"""``--prior-from``: a range test's file moves the centre of the searched rates, or is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.launch.lr_find import _write, range_test
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.store import StudyStore


def range_test_file(folder: Path, **changes: Any) -> tuple[str, float]:
    """A range test's file as ``bigbatch lr-find`` writes it, and its suggestion; the loss is a curve made by hand."""
    finding = range_test(lambda rate: 1 / (1 + rate) + rate**2, 1e-3, 100.0, 60)
    keys = {"model.name": "resnet18", "batch.global_size": 256, **changes}
    _write(TrainConfig().replace_keys(keys), finding, folder)
    return str(folder / "lr_find.json"), finding.suggestion


def plan_of(tmp_path: Path, *files: str, **options: Any) -> SearchPlan:
    values = {"space": "large_batch", "model": "resnet18", "output": str(tmp_path / "runs"), "study": "s"}
    return make_plan(SearchOptions(**values | {"prior_from": files} | options))


def rate(plan: SearchPlan, optimizer: str, batch: int, **params: Any) -> TrainConfig:
    point = {"optimizer": optimizer, "global_batch_size": batch, "lr_multiplier": 1.0, **params}
    return plan.space(StandInTrial(None, fixed=point), plan.workload)


def test_the_centre_is_the_suggestion_at_the_tests_batch_and_momentum(tmp_path: Path) -> None:
    file, suggestion = range_test_file(tmp_path / "t", **{"optimizer.name": "sgd", "momentum": 0.95})
    plan = plan_of(tmp_path, file)
    assert rate(plan, "sgd", 256, one_minus_momentum=0.05).optimizer.peak_lr == pytest.approx(suggestion)
    twice = rate(plan, "sgd", 512, one_minus_momentum=0.05).optimizer.peak_lr
    assert twice == pytest.approx(2 * suggestion), "from there on Goyal's linear rule holds"
    without = plan_of(tmp_path)
    for other in ("lars", "lamb"):
        assert rate(plan, other, 256) == rate(without, other, 256), "the file says nothing of other optimizers"


@pytest.mark.parametrize("trust_coefficient", [0.001, 0.02])
def test_lars_keeps_the_size_of_its_step_whatever_the_tests_trust_coefficient(
    tmp_path: Path, trust_coefficient: float
) -> None:
    changes = {"optimizer.name": "lars", "trust_coefficient": trust_coefficient}
    file, suggestion = range_test_file(tmp_path / "t", **changes)
    found = rate(plan_of(tmp_path, file), "lars", 256, one_minus_momentum=0.1).optimizer
    assert found.peak_lr * found.trust_coefficient == pytest.approx(suggestion * trust_coefficient)


def test_the_range_is_around_it_and_one_file_an_optimizer_is_taken(tmp_path: Path) -> None:
    sgd, suggestion = range_test_file(tmp_path / "a", **{"optimizer.name": "sgd"})
    lamb, _ = range_test_file(tmp_path / "b", **{"optimizer.name": "lamb"})
    lars, _ = range_test_file(tmp_path / "c", **{"optimizer.name": "lars"})
    plan = plan_of(tmp_path, sgd, lamb, lars, set=("global_size=256", "momentum=0.9"))
    shown = plan.ranges["peak_lr[sgd]"]  # observed: of 64 draws with extra weight on the ends
    assert (shown.low, shown.high) == (pytest.approx(suggestion / 4), pytest.approx(suggestion * 4))


def test_a_resumed_study_keeps_its_prior_without_the_file(tmp_path: Path) -> None:
    file, _ = range_test_file(tmp_path / "t", **{"optimizer.name": "sgd"})
    plan = plan_of(tmp_path, file)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    Path(file).unlink()
    resumed = make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs")))
    assert resumed.workload.lr_factors == plan.workload.lr_factors != {}
    other, _ = range_test_file(tmp_path / "u", **{"optimizer.name": "sgd", "batch.global_size": 64})
    for repeated in (other, file):  # a job that is put back repeats its options, whatever became of the file
        again = make_plan(SearchOptions(resume=True, study="s", output=str(tmp_path / "runs"), prior_from=(repeated,)))
        assert again.workload.lr_factors == plan.workload.lr_factors


def test_what_set_fixes_counts_for_the_centre(tmp_path: Path) -> None:
    tested = {"optimizer.name": "sgd", "momentum": 0.95, "batch.global_size": 512}
    file, suggestion = range_test_file(tmp_path / "t", **tested)
    plan = plan_of(tmp_path, file, space="lr_warmup", set=("optimizer=sgd", "momentum=0.95"))
    pinned = StandInTrial(None, fixed={"global_batch_size": 512, "lr_multiplier": 1.0})
    assert plan.space(pinned, plan.workload, plan.overrides).optimizer.peak_lr == pytest.approx(suggestion)
    file, suggestion = range_test_file(tmp_path / "u", **{"optimizer.name": "lars", "trust_coefficient": 0.02})
    plan = plan_of(tmp_path, file, set=("trust_coefficient=0.02",))
    point = {"optimizer": "lars", "global_batch_size": 256, "lr_multiplier": 1.0, "one_minus_momentum": 0.1}
    found = plan.space(StandInTrial(None, fixed=point), plan.workload, plan.overrides).optimizer
    assert (found.peak_lr, found.trust_coefficient) == (pytest.approx(suggestion), 0.02)


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


@pytest.mark.parametrize(
    ("edit", "options", "message"),
    [
        ({"suggestion": -1}, {}, "above 0; got -1"),
        ({"suggestion": float("nan")}, {}, "above 0; got nan"),
        ({"exploded_at": None}, {}, "higher --last"),
        ({"schema_version": 2}, {}, "schema 1; got 2"),
        ({}, {"model": "resnet34"}, "the search's model"),
        ({}, {"set": ("optimizer=lamb",)}, "searches the tested optimizer's rate"),
        ({}, {"set": ("peak_lr=1",)}, "searches the tested optimizer's rate"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, edit: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    file, _ = range_test_file(tmp_path / "t", **{"optimizer.name": "sgd"})
    Path(file).write_text(json.dumps(json.loads(Path(file).read_text()) | edit))
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(tmp_path, file, **options)
    assert "\n" not in str(caught.value)


def test_on_a_cluster_the_network_must_be_named(tmp_path: Path) -> None:
    """What auto means is known only once the cluster was joined."""
    file, _ = range_test_file(tmp_path / "t", **{"optimizer.name": "sgd"})
    with pytest.raises(ConfigError, match="Write --model resnet50"):
        plan_of(tmp_path, file, model=None, address="127.0.0.1:6379")
    assert plan_of(tmp_path, file, address="127.0.0.1:6379").workload.lr_factors


def test_what_is_no_range_test_is_refused(tmp_path: Path) -> None:
    text, best = tmp_path / "text.json", tmp_path / "best.json"
    text.write_text("{")
    best.write_text(json.dumps({"config": TrainConfig().to_dict()}))
    for path, message in ((text, "not JSON"), (best, "without suggestion"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=message):
            plan_of(tmp_path, str(path))
    file, _ = range_test_file(tmp_path / "t", **{"optimizer.name": "sgd"})
    with pytest.raises(ConfigError, match="two for sgd"):
        plan_of(tmp_path, file, file)
    own = tmp_path / "own.py"
    own.write_text(OWN_SPACE)
    with pytest.raises(ConfigError, match="--space own"):
        plan_of(tmp_path, file, space=str(own))


def test_one_optimizer_without_a_test_keeps_the_range_wide(tmp_path: Path) -> None:
    sgd, _ = range_test_file(tmp_path / "a", **{"optimizer.name": "sgd"})
    ends = [
        (r.low, r.high)
        for r in (plan_of(tmp_path, sgd, set=o).ranges["lr_multiplier"] for o in ((), ("optimizer=sgd",)))
    ]
    assert ends == [(1 / 16, 16.0), (1 / 4, 4.0)]
