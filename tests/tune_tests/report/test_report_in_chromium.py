"""The report as a browser shows it: figures with data, no error, no request, no sideways scrolling, no foreign code."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigbatch.tune.report.page import write_report
from bigbatch.tune.report.recorded_study import open_recorded
from helpers.browser import CUT, EMPTY_FIGURES, WIDER, Page, chromium, opened_browser
from helpers.invented_studies import hostile_study, invented_study

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="needs plotly: pip install plotly"),
    pytest.mark.xdist_group("chromium"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = invented_study(tmp_path_factory.mktemp("runs") / "kept", 60)
    write_report(open_recorded(folder), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with opened_browser() as page:
        yield page


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop", "dark phone"])
def test_every_figure_has_data_and_nothing_is_loaded(browser: Page, report: Path, width: int, dark: bool) -> None:
    browser.look(width, dark=dark, mobile=width < 600)
    browser.open(report)
    assert int(browser.evaluate("document.documentElement.dataset.drawn")) == 4
    assert browser.evaluate(EMPTY_FIGURES) == []
    assert browser.evaluate(WIDER) == 0 and browser.evaluate(CUT) == 0
    assert browser.errors == [] and browser.requests == []


def test_the_figures_follow_the_look_of_the_system(browser: Page, report: Path) -> None:
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    browser.look(dark=False)
    browser.open(report)
    light = browser.evaluate(ink)
    browser.look(dark=True)
    wait = f"const look = setInterval(() => {{ if ({ink} !== '{light}') {{ clearInterval(look); done(true) }} }}, 20)"
    assert browser.evaluate(f"new Promise((done) => {{ {wait} }})") is True


def test_texts_of_a_study_run_no_code(browser: Page, tmp_path: Path) -> None:
    folder = hostile_study(tmp_path / "hostile")
    write_report(open_recorded(folder), folder / "report.html")
    browser.look()
    browser.send("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.attacked = true; };")
    browser.open(folder / "report.html")
    assert browser.evaluate("window.attacked === undefined") is True
    assert browser.evaluate("document.querySelectorAll('main img, main a[href^=javascript], svg a').length") == 0
    assert browser.evaluate(EMPTY_FIGURES) == [] and browser.requests == []
