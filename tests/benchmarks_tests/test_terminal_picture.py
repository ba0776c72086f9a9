"""The README's picture of a terminal shows what a search prints today."""

import json
import re
from pathlib import Path

import pytest
import terminal_picture as script

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.console.display import SearchProgress, summary_line, trial_table
from bigbatch.tune.runs.observer import TrialView
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


def test_the_table_in_the_picture_has_the_words_of_the_live_table(shown: list[str]) -> None:
    header = next(line for line in shown if line.startswith("trial  ")).split()
    trials = {n: TrialView(n, {}, TrainConfig(), state) for n, state in enumerate(("COMPLETE", "PRUNED", "RUNNING"))}
    progress = SearchProgress(12, 2, trials)
    today = [str(column.header) for column in trial_table(progress).columns]
    assert header == [name for name in today if name in header], AGAIN

    def words(line: str) -> str:
        return re.sub(r"[\d.:–]+( %)?", "N", line)

    summary = next(line for line in shown if " trials ended" in line)
    shape = words(summary_line(progress).plain).replace("best N (trial N) · ", "")
    assert words(summary).replace("best N (trial N) · ", "").split(" · ")[:2] == shape.split(" · ")[:2], AGAIN
