"""``--resume`` of a study with something else than it was planned with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.plan_notes import only_at_the_beginning
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.option_checks import check_same_values
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.plan.submission_check import check_by_parts
from bigbatch.tune.storage.store import StudyStore

PLANNED = SearchOptions(
    space="smoke", study="s", max_epochs=2, subset=0.5, set=("lr_multiplier=1", "wd=1e-4", "prefetch_factor=4")
)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(PLANNED)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    return plan.folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"set": ("lr_multiplier=2",)}, "--set lr_multiplier was 1.0; got 2.0. Leave --set lr_multiplier out"),
        ({"set": ("weight_decay=1",)}, "--set optimizer.weight_decay was 0.0001; got 1.0"),
        ({"set": ("warmup=0",)}, "--set schedule.warmup_epochs was not given; got 0.0"),
        ({"subset": 0.4}, "--subset was 0.5; got 0.4. Leave --subset out (it is kept), or write --study OTHER."),
        ({"max_epochs": 3}, "--max-epochs was 2; got 3"),
        ({"seed": 1}, "--seed was 0; got 1"),
        ({"model": "resnet34"}, "--model was "),
    ],
)
def test_what_would_make_it_another_study_is_refused_in_the_words_of_the_command_line(study, changed, said) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(SearchOptions(study="s", resume=True, **changed))
    assert said in str(refused.value) and "\n" not in str(refused.value) and "overrides" not in str(refused.value)


@pytest.mark.parametrize("again", [{}, {"set": ("wd=.0001", "lr_multiplier=1.0")}, {"set": ("prefetch_factor=8",)}])
def test_the_same_in_other_words_and_what_changes_no_result_is_taken(study, again) -> None:
    plan = make_plan(SearchOptions(study="s", resume=True, trials=9, **again))
    assert plan.overrides["lr_multiplier"] == 1 and plan.overrides["optimizer.weight_decay"] == 1e-4
    assert plan.overrides["data.subset"] == 0.5 and plan.trials == 9


def test_renamed_classes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (8, 8)).save(tmp_path / "images" / part / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    planned = SearchOptions(space="smoke", study="s", data="images", set=("image_size=32", "batch=4"))
    plan = make_plan(planned)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    make_plan(SearchOptions(study="s", resume=True))
    for part in ("train", "val"):
        (tmp_path / "images" / part / "a").rename(tmp_path / "images" / part / "z")
    with pytest.raises(ConfigError, match="the names of the data's classes have changed, or their order. Restore"):
        make_plan(SearchOptions(study="s", resume=True))


def test_a_default_that_has_changed_since_is_kept(study: Path) -> None:
    text = json.loads((study / "study.json").read_text())
    text["max_epochs"], text["options"]["max_epochs"] = 7, None
    (study / "study.json").write_text(json.dumps(text))
    assert make_plan(SearchOptions(study="s", resume=True)).max_epochs == 7


def test_workers_with_which_the_space_has_other_batches_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(SearchOptions(study="b", max_epochs=2, workers=1))
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    assert make_plan(SearchOptions(study="b", resume=True, workers=2)).workers == 2, "128 to 1,024 are even"
    check_same_values(plan.frontier, 1, {**plan.to_dict(), "frontier": None})  # a study of an earlier version
    other = dataclasses.replace(cast(FrontierPlan, plan.frontier), values=(126, 255, 510, 1020))
    with pytest.raises(ConfigError) as refused:
        check_same_values(other, 3, json.loads(json.dumps(plan.to_dict())))
    assert str(refused.value) == (
        "--resume continues a study as it was planned: the values of global_batch_size were 128, 256, 512, 1024; got "
        "126, 255, 510, 1020 with --workers 3. Write --workers 1, or write --study OTHER."
    )


def test_the_plan_says_which_options_a_resumed_study_does_not_read_again(study: Path) -> None:
    """A job that was put back into the queue repeats all options of its search."""
    plan = make_plan(SearchOptions(study="s", resume=True, enqueue=("best.json",), prior_from=("lr_find.json",)))
    said = only_at_the_beginning(plan)
    assert said == "--enqueue and --prior-from: a resumed study keeps what it began with, and does not read them again."
    assert only_at_the_beginning(make_plan(SearchOptions(study="s", resume=True))) is None
    assert only_at_the_beginning(make_plan(dataclasses.replace(PLANNED, study="n", enqueue=("none",)))) is None


def test_a_plan_to_resume_looks_at_the_trials_that_a_job_would_wait_in_a_queue_for(study: Path) -> None:
    text = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps({**text, "sessions": [{"host": "here"}]}))
    journal = study / "optuna.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "study')  # a driver writes on
    assert make_plan(SearchOptions(study="s", resume=True)).study == "s"
    for damage, words in (
        (whole + b"garbage\n", r"optuna.journal must be readable; got .*\(line 2 is damaged\). Restore it from a copy"),
        (b"", "--resume needs the study's trials; got 's', which the storage does not hold. Write the --storage"),
    ):
        journal.write_bytes(damage)
        for check in (make_plan, check_by_parts):
            with pytest.raises(ConfigError, match=words):
                check(SearchOptions(study="s", resume=True))
