"""The README's picture of a terminal shows what a search prints today."""

import json
import re
from pathlib import Path

import pytest
import terminal_picture as script

from helpers import commands

AGAIN = "the picture is out of date; run: python benchmarks/default_run.py --picture"


@pytest.fixture(scope="module")
def shown() -> list[str]:
    """The stored screen's lines, without colours."""
    text = json.loads(script.RAW.read_text())["screen"]
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


def test_the_picture_is_drawn_from_the_stored_screen_and_loads_nothing() -> None:
    picture = script.PICTURE.read_text()
    assert script.draw(json.loads(script.RAW.read_text())) == picture
    assert len(picture) < 100_000
    assert re.findall(r"https?://[^\"' ]+", picture.replace("http://127.0.0.1", "")) == ["http://www.w3.org/2000/svg"]


def test_the_space_in_the_picture_is_the_one_that_a_search_prints(shown: list[str], tmp_path: Path) -> None:
    done = commands.run("--space", "large_batch", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()

    def space(lines: list[str]) -> list[str]:
        first = next(i for i, line in enumerate(lines) if line.startswith("space"))
        last = next(i for i, line in enumerate(lines) if line.startswith("data"))
        return " ".join(lines[first:last]).split()  # at a terminal's width, lines are broken between words

    assert space(shown) == space(printed), AGAIN
