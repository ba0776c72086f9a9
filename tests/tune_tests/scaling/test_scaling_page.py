"""``scaling.html``: what the page says, and what a browser draws of it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bigbatch.tune.commands.scale import scale_main
from bigbatch.tune.scaling.scaling_page import speed_figure
from helpers.browser import CUT, EMPTY_FIGURES, WIDER, Page, chromium, opened_browser
from helpers.scaled_sizes import Trainings

needs_chromium = pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
needs_plotly = pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="needs plotly: pip install plotly")


def page_of(best: Path, output: str, *words: str) -> Path:
    assert scale_main(["--config", str(best), "--output", output, *words]) == 0
    return Path(output, "scaling.html")


def test_the_page_says_what_the_terminal_says(best: Path, trainings: Trainings) -> None:
    text = page_of(best, "out", "--workers", "1,2,4,8", "--to", "64").read_text()
    assert "Past 2 workers more is waste" in text and "MODEL, not measured" in text
    assert "only one size with several nodes" in text
    found = json.loads(Path("out/scaling.json").read_text())
    for one in found["modelled"]:
        assert f"{one['images_per_s']:,.0f}" in text


def test_a_folder_with_html_in_its_name_runs_no_code(best: Path, trainings: Trainings) -> None:
    text = page_of(best, "<img src=x onerror=alert(1)>", "--workers", "1,2", "--epochs", "0").read_text()
    assert "<img" not in text and "&lt;img src=x" in text
    assert "No model: it needs 3 measured sizes" in text
    assert "Nothing was trained (--epochs 0)." in text


def test_the_command_of_a_row_can_be_pasted(
    best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    page_of(best, "an output", "--workers", "1,2", "--epochs", "1")
    told = capsys.readouterr().out
    line = next(one for one in told.splitlines() if one.endswith("--workers N"))
    assert shlex.split(line)[2:] == ["--config", "an output/sizes/N/config.json", "--workers", "N"]
    assert "AFTER 1 EPOCH\n" in told and "1 epoch of training" in told


def test_a_page_that_cannot_be_written_costs_no_result(
    best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out/scaling.html").mkdir(parents=True)
    assert scale_main(["--config", str(best), "--output", "out", "--workers", "1,2"]) == 0
    assert re.search(r"The page was not written \(\w+: ", capsys.readouterr().out)
    assert Path("out/scaling.json").exists()


def test_a_size_slower_than_the_smallest_is_within_the_plot() -> None:
    sizes = [SimpleNamespace(workers=1, images_per_s=357.0), SimpleNamespace(workers=2, images_per_s=40.0)]
    found: Any = SimpleNamespace(sizes=sizes, beyond=[SimpleNamespace(workers=4, images_per_s=9.0)])
    axes: Any = speed_figure(found).layout
    low, high = axes["yaxis"]["range"]
    assert all(10**low < speed < 10**high for speed in (357, 40, 9, 4 * 357))


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with opened_browser() as page:
        yield page


@needs_chromium
@needs_plotly
@pytest.mark.xdist_group("chromium")
def test_every_figure_has_data_on_a_desktop_and_a_phone(best: Path, trainings: Trainings, browser: Page) -> None:
    path = page_of(best, "out", "--workers", "1,2,4,8").absolute()
    for width, dark in ((1280, False), (390, True)):
        browser.look(width, dark=dark, mobile=width < 600)
        browser.open(path)
        assert int(browser.evaluate("document.documentElement.dataset.drawn")) == 4
        assert browser.evaluate(EMPTY_FIGURES) == []
        assert browser.evaluate(WIDER) == 0 and browser.evaluate(CUT) == 0
        assert browser.errors == [] and browser.requests == []
