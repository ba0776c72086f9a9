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
    assert int(browser.evaluate("document.documentElement.dataset.drawn")) >= 7
    assert browser.evaluate(EMPTY_FIGURES) == []
    assert browser.evaluate(WIDER) == 0 and browser.evaluate(CUT) == 0
    assert browser.errors == [] and browser.requests == []


def test_the_frontiers_table_fits_a_small_window(browser: Page, report: Path) -> None:
    beyond = "[...document.querySelectorAll('.scroll:has(.stacked)')].map((one) => one.scrollWidth - one.clientWidth)"
    browser.look(660)
    browser.open(report)
    for width in (660, 700, 800):
        browser.look(width)
        assert set(browser.evaluate(beyond)) == {0} and browser.evaluate(BROKEN_WORDS) == [], width


def test_the_figures_follow_the_look_of_the_system(browser: Page, report: Path) -> None:
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    browser.look(dark=False)
    browser.open(report)
    light = browser.evaluate(ink)
    browser.look(dark=True)
    wait = f"const look = setInterval(() => {{ if ({ink} !== '{light}') {{ clearInterval(look); done(true) }} }}, 20)"
    assert browser.evaluate(f"new Promise((done) => {{ {wait} }})") is True


def test_a_printed_report_is_light_and_whole(browser: Page, report: Path, tmp_path: Path) -> None:
    browser.look(dark=True)
    browser.open(report)
    browser.pdf(tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    pages = content.count(b"/Type /Page\n") + content.count(b"/Type /Page ")
    parts = int(browser.evaluate("document.querySelectorAll('section').length"))
    assert content.startswith(b"%PDF") and 4 <= pages <= parts, "figures and tables share pages"
    assert browser.evaluate("[...document.querySelectorAll('.plot')].every((plot) => plot.style.zoom == 1)") is True
    assert browser.errors == []


BROKEN_WORDS = """[...document.querySelectorAll('th')].flatMap((head) => {
  const text = head.firstChild, words = [...(text ? text.data : '').matchAll(/[^\\s\\-\\/]+/g)];
  return words.filter((word) => {
    const range = document.createRange();
    range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
    return range.getClientRects().length > 1;
  }).map((word) => word[0]);
})"""
A4 = 718
"""Width of the paper within its margins, in the pixels of a page."""


def test_no_word_in_the_head_of_a_table_is_cut_on_paper(browser: Page, report: Path) -> None:
    browser.look(A4)
    browser.send("Emulation.setEmulatedMedia", media="print")
    browser.open(report)
    assert browser.evaluate("document.querySelectorAll('th').length") > 10
    assert browser.evaluate(BROKEN_WORDS) == []
    assert browser.evaluate(WIDER) == 0
    browser.send("Emulation.setEmulatedMedia", media="")


def test_texts_of_a_study_run_no_code(browser: Page, tmp_path: Path) -> None:
    folder = hostile_study(tmp_path / "hostile")
    write_report(open_recorded(folder), folder / "report.html")
    browser.look()
    browser.send("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.attacked = true; };")
    browser.open(folder / "report.html")
    assert browser.evaluate("window.attacked === undefined") is True
    assert browser.evaluate("document.querySelectorAll('main img, main a[href^=javascript], svg a').length") == 0
    assert browser.evaluate(EMPTY_FIGURES) == [] and browser.requests == []
