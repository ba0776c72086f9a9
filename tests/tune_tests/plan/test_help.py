"""``bigbatch tune --help``, and options that stand alone: W&B's mode, holdout, closed folders."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bigbatch.cluster.host.allocation import PLANNED_NODES
from bigbatch.train_loop.launch.wandb_run import reachable_mode
from bigbatch.tune.plan.arguments import FIRST, OPTIONS, RARE, parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from helpers.refusals import refusal


def help_of(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        tune_parser("bigbatch tune").parse_args([word])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_ten_that_matter_first(capsys: pytest.CaptureFixture[str]) -> None:
    shown, all_of_them = (
        re.findall(r"^  (?:-h, )?--([a-z-]+)", help_of(word, capsys), re.MULTILINE) for word in ("--help", "--help-all")
    )
    assert shown[:10] == [one.name for one in OPTIONS if one.group == FIRST]
    rare = [one.name for one in OPTIONS if one.group == RARE]
    assert all_of_them == [*shown, *rare] and len(shown) <= 40


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
