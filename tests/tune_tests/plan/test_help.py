"""``bigbatch tune --help``, and options that stand alone: W&B's mode, holdout, closed folders."""

import dataclasses
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bigbatch.cluster.host.allocation import PLANNED_NODES
from bigbatch.command import main
from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.launch.wandb_run import reachable_mode
from bigbatch.tune.plan.arguments import FIRST, OPTIONS, parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import (
    make_plan,
)
from bigbatch.tune.plan.holdout import divide_validation
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from helpers.refusals import refusal, refused_command


def help_of(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        tune_parser("bigbatch tune").parse_args([word])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_ten_that_matter_first(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^  (?:-h, )?--([a-z-]+)", help_of("--help", capsys), re.MULTILINE)
    assert shown[:10] == [one.name for one in OPTIONS if one.group == FIRST]


def test_every_field_of_a_search_has_one_option() -> None:
    parsed = parse_options(tune_parser("bigbatch tune"), [])
    assert SearchOptions(**parsed) == SearchOptions()  # type: ignore[arg-type]
    assert parsed.keys() == vars(SearchOptions()).keys()


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nothing listens, and a key for it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_without_a_network_online_is_refused_at_the_start_and_auto_goes_offline(no_server, tmp_path, capsys):
    options = SearchOptions(space="smoke", output=str(tmp_path / "runs"), trials=1, wandb="online")
    words = r"--wandb online needs 127\.0\.0\.1:\d+, which cannot be reached.*Write --wandb auto"
    refusal(lambda: make_plan(options), words)
    assert not (tmp_path / "runs").exists()
    assert make_plan(replace(options, wandb="auto")).wandb == "offline"
    assert capsys.readouterr().err.count("\n") == 1


def test_a_check_for_a_job_elsewhere_does_not_judge_this_network(no_server, monkeypatch):
    monkeypatch.setenv(PLANNED_NODES, "1x8c0g")
    assert [reachable_mode(mode) for mode in ("online", "auto")] == ["online", "auto"]


def plan_of(folder: Path, *words: str) -> SearchPlan:
    options = SearchOptions(**parse_options(tune_parser(""), ["--output", str(folder), *words]))  # type: ignore[arg-type]
    return make_plan(options)


@pytest.mark.parametrize(
    ("words", "sizes"),
    [((), (180, 180)), (("none",), (360, 0)), (("20%",), (288, 72)), (("0.25",), (270, 90))],
)
def test_a_search_on_digits_keeps_half_of_the_validation_images_or_the_part_that_is_given(words, sizes, tmp_path):
    plan = plan_of(tmp_path, *(f"--holdout={word}" for word in words))
    assert (plan.data.train_size, plan.data.val_size, plan.data.holdout_size) == (1437, *sizes)
    assert (plan.identity()["val_size"], plan.identity()["holdout_size"]) == sizes
    assert plan.overrides.get("data.holdout", 0.0) == sizes[1] / 360


@pytest.mark.parametrize(
    ("images", "classes", "divided"),
    [(199, 10, False), (200, 10, True), (3999, 1000, False), (4000, 1000, True), (50_000, 1000, True)],
)
def test_only_enough_images_are_divided_by_default(images: int, classes: int, divided: bool) -> None:
    data = dataclasses.replace(describe_data_set(DataConfig()), val_size=images, num_classes=classes)
    found, overrides = divide_validation(data, {}, None)
    assert found.holdout_size == (round(images / 2) if divided else 0)
    assert found.val_size + found.holdout_size == images and ("data.holdout" in overrides) == divided


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which the file system lets nobody; root may enter all, so permissions alone show nothing."""
    stat, listdir, folder = os.stat, os.listdir, tmp_path / "closed"

    def checked(path: object) -> None:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))

    def stat_of_a_user(path, *args, **options):
        checked(path)
        return stat(path, *args, **options)

    def listdir_of_a_user(path="."):
        checked(path)
        return listdir(path)

    monkeypatch.setattr(os, "stat", stat_of_a_user)
    monkeypatch.setattr(os, "listdir", listdir_of_a_user)
    monkeypatch.chdir(tmp_path)
    return folder


REFUSED = [
    ("pack", ("{}/x", "out"), "the source must exist"),
    ("pack", ("images", "{}/x"), "DST must be a writable folder"),
    ("train", ("--model", "{}/x.py:f", "--data", "digits"), "must name a Python file that is there"),
    ("tune", ("--dry-run", "--strategy", "{}/x.py:f"), "must name a Python file that is there"),
    ("tune", ("--dry-run", "--warm-start", "{}/study"), "--warm-start takes folders of studies.* Check the path"),
    ("tune", ("--dry-run", "--enqueue", "{}/best.json"), "--enqueue takes recipe:NAME.* Check the path"),
    ("tune", ("--dry-run", "--space", "{}/x.py"), "--space must name a Python file that is there.* Check the path"),
    ("tune", ("--resume", "--study", "{}/x"), "--study is the name of a folder in --output; got the path"),
    ("studies", ("--output", "{}/x"), "--output must be a folder of studies"),
    ("scale", ("--config", "{}/x"), "--config must be a readable file"),
    ("wandb-sync", ("{}/x",), "wandb-sync sends offline runs"),
]


@pytest.mark.parametrize(("command", "words", "said"), REFUSED, ids=[" ".join((c, *w)) for c, w, _ in REFUSED])
def test_a_command_about_a_closed_folder_meets_one_line(closed, command, words, said, capsys):
    error = refused_command(capsys, main, [command, *(word.format(closed) for word in words)])
    assert re.search(said, error)
