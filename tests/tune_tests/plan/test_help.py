"""``bigbatch tune --help``: groups, the ten options that matter first, and what is rarely needed only on request."""

from __future__ import annotations

import re

import pytest

from bigbatch.tune.plan.arguments import FIRST, OPTIONS, RARE, parse_options, tune_parser
from bigbatch.tune.plan.checked_plan import (
    DEFAULT_EPOCHS,
    DEFAULT_EPOCHS_OTHER,
    DEFAULT_TRIALS,
    DEFAULT_TRIALS_OTHER,
)
from bigbatch.tune.plan.options import SearchOptions


def help_of(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        tune_parser("bigbatch tune").parse_args([word])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_shows_at_most_forty_options_and_the_ten_that_matter_first(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^  (?:-h, )?--([a-z-]+)", help_of("--help", capsys), re.MULTILINE)
    assert len(shown) <= 40 and shown[:10] == [one.name for one in OPTIONS if one.group == FIRST]
    everything = help_of("--help-all", capsys)
    rare = {one.name for one in OPTIONS if one.group == RARE}
    assert rare and not rare & set(shown)
    assert set(re.findall(r"^  (?:-h, )?--([a-z-]+)", everything, re.MULTILINE)) == {*shown, *rare}


def test_every_field_of_a_search_has_one_option() -> None:
    parsed = parse_options(tune_parser("bigbatch tune"), [])
    assert SearchOptions(**parsed) == SearchOptions()  # type: ignore[arg-type]
    assert parsed.keys() == vars(SearchOptions()).keys()


def test_the_help_says_the_defaults_that_a_plan_takes() -> None:
    words = " ".join(tune_parser("bigbatch tune").format_help().split())
    assert f"else {DEFAULT_TRIALS_OTHER}, or {DEFAULT_TRIALS['digits']} on digits" in words
    assert f"else {DEFAULT_EPOCHS_OTHER}, or {DEFAULT_EPOCHS['digits']} on digits" in words
