"""How a machine is shared out, durations, and what a resumed study keeps, takes and refuses."""

import functools
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.console.findings import resume_command
from bigbatch.tune.plan import fitting
from bigbatch.tune.plan.checked_plan import check_folder, make_plan
from bigbatch.tune.plan.fitting import auto_model
from bigbatch.tune.plan.machine import Machine, Node
from bigbatch.tune.plan.option_checks import parse_duration
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal
from helpers.small_disk import mounted

GIB = 2**30
ON_GPUS, ON_CORES = Machine((Node(8, 2, 64 * GIB, 80 * GIB),)), Machine((Node(8, 0, 64 * GIB),))
LOCAL = "bigbatch.tune.plan.checked_plan.local_machine"


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("30m", 1800), ("30min", 1800), ("4h", 14400), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_durations(text, value):
    assert parse_duration(text) == value


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
    assert (auto_model(ON_GPUS, info), auto_model(ON_CORES, info)) == (on_gpus, "resnet18")


def test_a_resumed_plan_keeps_what_was_said_and_takes_what_is_said_now(tmp_path):
    first = SearchOptions(space="smoke", trials=5, set=("peak_lr=0.1",), stopping="none", stage="/scratch")
    later = SearchOptions(study="s", trials=9, resume=True)
    merged = later.over(first.kept())
    assert (merged.space, merged.trials, merged.set, merged.stopping) == ("smoke", 9, ("peak_lr=0.1",), "none")
    assert merged.stage == "/scratch"
    assert SearchOptions(resume=True, stage="none").over(first.kept()).stage == "none", "it can do without"
    assert "storage" not in SearchOptions(storage="postgresql://me:secret@host/db").kept()


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
    monkeypatch.setattr(LOCAL, lambda: ON_GPUS)
    first = make_plan(SearchOptions(space="smoke", study="s", output=str(tmp_path), set=("image_size=96",)))
    StudyStore.create(first.folder, "s", first.to_dict(), None).close()
    monkeypatch.setattr(LOCAL, lambda: ON_CORES)
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


PLANNED = SearchOptions(
    space="smoke", study="s", max_epochs=2, subset=0.5, set=("lr_multiplier=1", "wd=1e-4", "loader_workers=3")
)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(PLANNED)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    return plan.folder


OTHERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"set": ("lr_multiplier=2",)}, "--set lr_multiplier was 1.0; got 2.0. Leave --set lr_multiplier out"),
    ({"set": ("weight_decay=1",)}, "--set optimizer.weight_decay was 0.0001; got 1.0"),
    ({"set": ("warmup=0",)}, "--set schedule.warmup_epochs was not given; got 0.0"),
    ({"subset": 0.4}, "--subset was 0.5; got 0.4. Leave --subset out (it is kept), or write --study OTHER."),
    ({"max_epochs": 3}, "--max-epochs was 2; got 3"),
    ({"seed": 1}, "--seed was 0; got 1"),
    ({"model": "resnet34"}, "--model was "),
)


def test_what_would_make_it_another_study_is_refused_in_the_words_of_the_command_line(study) -> None:
    for changed, said in OTHERS:
        again = SearchOptions(study="s", resume=True, **changed)
        refused = refusal(functools.partial(make_plan, again))
        assert said in refused and "overrides" not in refused


@pytest.mark.parametrize(
    "again",
    [
        {},
        {"set": ("wd=.0001", "lr_multiplier=1.0")},
        {"set": ("data.loader.workers=2", "data.loader.pin_memory=false")},
    ],
)
def test_the_same_in_other_words_and_what_changes_no_result_is_taken(study, again) -> None:
    plan = make_plan(SearchOptions(study="s", resume=True, trials=9, **again))
    assert plan.overrides["lr_multiplier"] == 1 and plan.overrides["optimizer.weight_decay"] == 1e-4
    assert plan.overrides["data.subset"] == 0.5 and plan.trials == 9
    changed = {"data.loader.workers": 2, "data.loader.pin_memory": False}
    assert "data.loader.workers=2" not in again.get("set", ()) or changed.items() <= plan.overrides.items()


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
        with pytest.raises(ConfigError, match=words):
            make_plan(SearchOptions(study="s", resume=True))


def test_a_study_in_a_folder_of_any_name_goes_on_and_its_path_is_put_into_the_two_options(study: Path) -> None:
    renamed = study.rename(study.with_name("Größe 2"))
    make_plan(SearchOptions(study="Größe 2", resume=True))
    for typed in ("runs/Größe 2", str(renamed.absolute()), "../runs/Größe 2"):
        with pytest.raises(ConfigError, match=r"Write --study 'Größe 2' --output \S*runs\.$"):
            make_plan(SearchOptions(study=typed, resume=True))
    with pytest.raises(ConfigError, match="--study names a folder"):
        make_plan(SearchOptions(study="Größe 3"))


def test_a_plan_to_resume_needs_a_folder_that_this_user_may_write() -> None:
    """As the search itself does: a plan that passes is to be one that can begin."""
    with mounted() as output:
        (output / "s").mkdir()
        assert check_folder(output, "s", resume=True) == output / "s"
        subprocess.run(["mount", "-o", "remount,ro", str(output)], check=True)  # root may write where others may not
        with pytest.raises(ConfigError, match=r"^a study's folder must be writable; got .*, or write --study OTHER\.$"):
            check_folder(output, "s", resume=True)
