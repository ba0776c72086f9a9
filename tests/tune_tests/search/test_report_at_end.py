"""The end of a search writes a report, unless seconds count or the disk is full."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bigbatch.tune.report import writing
from bigbatch.tune.search import driver
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch.interrupts import StopRequest
from helpers.invented_studies import invented_study


def said_at_end(folder: Path, *, signal: int | None = None, full: str = "") -> str:
    store, stop, out = StudyStore.open(folder, None), StopRequest(), io.StringIO()
    try:
        store.disk.full = full
        stop.signal = signal
        driver._say_report(store, stop, Console(file=out, soft_wrap=True))
    finally:
        store.close()
    return out.getvalue()


def test_a_search_that_ends_writes_its_report_and_says_where(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder) == f"\nReport: {folder / 'report.html'}\n"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "done · large_batch" in text and "The search is running" not in text, "its driver still holds the lease"


def test_a_search_that_a_signal_or_a_full_disk_ends_writes_none(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder, signal=2) == "" == said_at_end(folder, full="/tmp is full")
    assert not (folder / "report.html").exists()


def test_a_report_that_cannot_be_made_costs_the_search_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = invented_study(tmp_path / "s", 10)
    monkeypatch.setattr(writing, "recorded_at_end", lambda *_: 1 / 0)
    said = said_at_end(folder)
    assert said.count("\n") == 2 and "The report was not written (ZeroDivisionError" in said
