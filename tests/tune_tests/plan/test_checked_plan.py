"""How a machine is shared out, durations, and what a resumed study may change."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.console.findings import resume_command
from bigbatch.tune.plan import fitting
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.fitting import auto_model
from bigbatch.tune.plan.machine import Machine, Node
from bigbatch.tune.plan.option_checks import parse_duration
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.store import StudyStore

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("30m", 1800), ("30min", 1800), ("4h", 14400), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_durations(text, value):
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "0", "0s", "soon", "-4h", "4 hours", "h", "30m4h", "1h30"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match=r"needs a unit; got '90'\. Write e\.g\. 90h, 90min or 90s"):
        parse_duration("90")
    with pytest.raises(ConfigError, match="4h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("images", "size", "largest", "on_gpus"),
    [
        (1_437, 32, 0, "resnet18"),  # digits
        (1_437, 224, 0, "resnet18"),
        (50_000, 32, 0, "resnet18"),  # CIFAR-10
        (50_000, 224, 32, "resnet18"),  # CIFAR-10 as a folder of images, enlarged
        (2_040, 224, 750, "resnet18"),  # Flowers-102
        (9_469, 224, 500, "resnet50"),  # Imagenette
        (1_281_167, 224, 0, "resnet50"),  # ImageNet
    ],
)
def test_auto_is_the_large_network_for_many_large_images_on_gpus(images, size, largest, on_gpus):
    """README's first command has the same result with and without a GPU."""
    info = DataInfo("some", None, images, 10, 10, size, 3, (), "imagenet", largest_side=largest)
    assert auto_model(Machine((Node(8, 2, 64 * GIB, 80 * GIB),)), info) == on_gpus
    assert auto_model(Machine((Node(8, 0, 64 * GIB),)), info) == "resnet18"


def test_auto_takes_the_large_network_only_where_there_is_an_accelerator(tmp_path, monkeypatch):
    """And not for digits, until they are many and large."""
    options = SearchOptions(space="smoke", output=str(tmp_path), set=("image_size=96",))
    monkeypatch.setattr(
        "bigbatch.tune.plan.checked_plan.local_machine", lambda: Machine((Node(8, 2, 64 * GIB, 80 * GIB),))
    )
    assert make_plan(options).model == "resnet18"
    monkeypatch.setattr(fitting, "MANY_IMAGES", 1000)
    assert make_plan(options).model == "resnet50"
    assert make_plan(SearchOptions(space="smoke", output=str(tmp_path))).model == "resnet18"
    monkeypatch.setattr("bigbatch.tune.plan.checked_plan.local_machine", lambda: Machine((Node(8, 0, 64 * GIB),)))
    plan = make_plan(options)
    assert plan.model == "resnet18" and plan.model_was_auto
    assert make_plan(SearchOptions(space="smoke", output=str(tmp_path), model="resnet50")).model == "resnet50"


def test_a_resumed_plan_keeps_what_was_said_and_takes_what_is_said_now(tmp_path):
    first = SearchOptions(space="smoke", trials=5, set=("peak_lr=0.1",), stopping="none", workers=1)
    later = SearchOptions(study="s", trials=9, resume=True)
    merged = later.over(first.kept())
    assert (merged.space, merged.trials, merged.set, merged.stopping) == ("smoke", 9, ("peak_lr=0.1",), "none")
    assert "storage" not in SearchOptions(storage="postgresql://me:secret@host/db").kept()


def test_a_resume_may_change_how_fast_trials_read_and_what_they_forgive(tmp_path):
    options = SearchOptions(space="smoke", study="s", output=str(tmp_path), set=("momentum=0.8", "loader_workers=1"))
    first = make_plan(options)
    StudyStore.create(first.folder, "s", first.to_dict(), None).close()
    again = SearchOptions(
        study="s", output=str(tmp_path), resume=True, on_bad_image="skip", set=("data.loader.workers=2",)
    )
    changes = {"data.loader.workers": 2, "data.on_bad_image": "skip"}
    assert make_plan(again).overrides == {**first.overrides, **changes}
    with pytest.raises(ConfigError, match="--set optimizer.momentum was 0.8; got 0.7"):
        make_plan(dataclasses.replace(again, set=("momentum=0.7",)))


def test_a_prior_that_somebody_wrote_into_study_json_is_refused(tmp_path):
    first = make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path), set=("image_size=96",)))
    StudyStore.create(first.folder, "s", first.to_dict(), None).close()
    path = first.folder / "study.json"
    study = json.loads(path.read_text())
    study["options"]["prior_from"] = ["lr_find.json"]
    path.write_text(json.dumps(study))
    with pytest.raises(ConfigError, match="another type of 'prior_from'"):
        make_plan(SearchOptions(study="s", output=str(tmp_path), resume=True))


def test_a_resumed_study_can_do_without_its_stage():
    first = SearchOptions(stage="/scratch")
    assert SearchOptions(resume=True).over(first.kept()).stage == "/scratch"
    assert SearchOptions(resume=True, stage="none").over(first.kept()).stage == "none"


def test_a_relative_space_file_and_data_folder_are_remembered_as_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("")
    Path("images").mkdir()
    kept = SearchOptions(space="mine.py:fn", data="images").kept()
    assert kept == {"space": f"{tmp_path}/mine.py:fn", "data": f"{tmp_path}/images"}
    Path("large_batch.py").write_text("")
    Path("digits").mkdir()
    assert SearchOptions(space="large_batch", data="digits").kept() == {"space": "large_batch", "data": "digits"}


def test_what_a_killed_search_left_before_its_first_entry_is_no_study(tmp_path):
    folder = tmp_path / "s"
    (folder / "logs").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / ".lock").touch()
    (folder / ".study.json.123").touch()
    assert make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path))).folder == folder
    (folder / "notes.txt").touch()
    with pytest.raises(ConfigError, match="--study OTHER"):
        make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path)))


def test_a_resumed_study_keeps_the_network_that_auto_meant_where_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "MANY_IMAGES", 1000)
    monkeypatch.setattr(
        "bigbatch.tune.plan.checked_plan.local_machine", lambda: Machine((Node(8, 2, 64 * GIB, 80 * GIB),))
    )
    first = make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path), set=("image_size=96",)))
    StudyStore.create(first.folder, "s", first.to_dict(), None).close()
    monkeypatch.setattr("bigbatch.tune.plan.checked_plan.local_machine", lambda: Machine((Node(8, 0, 64 * GIB),)))
    again = make_plan(SearchOptions(study="s", output=str(tmp_path), resume=True))
    assert first.model == again.model == "resnet50"


def test_the_printed_resume_command_can_be_pasted_and_shows_no_password(tmp_path):
    def command(storage: str) -> list[str]:
        plan = make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path), storage=storage))
        return resume_command(plan).splitlines()

    line, remark = command("postgresql+psycopg2://me:secret@host/db?a=1&b=(2)")
    assert shlex.split(line)[-1] == "postgresql+psycopg2://me:***@host/db?a=1&b=(2)" and "password" in remark
    (line,) = command("sqlite:////data/my study.db")
    assert shlex.split(line)[-2:] == ["--storage", "sqlite:////data/my study.db"]


@pytest.mark.parametrize(("budget", "spent"), [(200.0, 200.1), (100.0, 302.4), (0.00001, 0.03), (1234.5, 9999.0)])
def test_the_budget_of_the_printed_resume_command_lets_the_study_go_on(tmp_path, budget, spent):
    plan = make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path), budget_gpu_hours=budget))
    words = shlex.split(resume_command(plan, spent))
    assert float(words[words.index("--budget-gpu-hours") + 1]) >= max(spent + 0.9 * budget, 1.9 * budget)
