"""The end of a search writes a report, after a signal only if there is time, and never on a full disk."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from bigbatch.base.waits import REPORT_BEGINS_S
from bigbatch.tune.report import page
from bigbatch.tune.search import driver
from bigbatch.tune.search.ending import LateReport
from bigbatch.tune.search.interrupts import StopRequest
from bigbatch.tune.storage.store import StudyStore
from helpers.invented_studies import invented_study


def said_at_end(folder: Path, stop: StopRequest | None = None, *, full: str = "", most_s: float = 600.0) -> str:
    """What the end of a search prints about its report, first with the study open, then when it is closed."""
    store, stop, out = StudyStore.open(folder, None), stop or StopRequest(), io.StringIO()
    console = Console(file=out, soft_wrap=True)
    late = LateReport(folder, stop, console)
    try:
        store.disk.full = full
        driver._say_report(store, stop, console, late)
        assert stop.signal is None or out.getvalue() == "", "after a signal the study is closed first"
    finally:
        store.close()
    late.write(most_s)
    return out.getvalue()


def signalled(seconds_ago: float) -> StopRequest:
    stop = StopRequest()
    stop.set("by SIGTERM", signal.SIGTERM)
    stop._signalled_at = time.monotonic() - seconds_ago
    return stop


def test_a_search_that_ends_writes_its_report_and_says_where(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder) == f"\nReport: {folder / 'report.html'}\n"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "done · large_batch" in text and "The search is running" not in text, "its driver still holds the lease"


def test_a_search_that_a_signal_ends_writes_its_report_last(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    about = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**about, "trials": 20}))
    assert said_at_end(folder, signalled(0.0)) == f"Report: {folder / 'report.html'}\n"
    assert "interrupted · large_batch" in (folder / "report.html").read_text(encoding="utf-8")


def test_long_after_a_signal_the_command_is_said_instead(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "s", 10)
    assert said_at_end(folder, signalled(REPORT_BEGINS_S + 1)) == f"For a report: bigbatch report {folder}\n"
    assert not (folder / "report.html").exists()


def test_a_report_that_takes_too_long_after_a_signal_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, never = invented_study(tmp_path / "s", 10), threading.Event()
    monkeypatch.setattr(page, "recorded_at_end", lambda *_: never.wait())
    try:
        assert said_at_end(folder, signalled(0.0), most_s=0.1) == f"For a report: bigbatch report {folder}\n"
    finally:
        never.set()


def test_a_full_disk_or_a_search_without_trials_has_no_report(tmp_path: Path) -> None:
    folder, empty = invented_study(tmp_path / "s", 10), invented_study(tmp_path / "empty", 0)
    assert said_at_end(folder, full="/tmp is full") == "" == said_at_end(folder, signalled(0.0), full="/tmp is full")
    assert said_at_end(empty, signalled(0.0)) == ""
    assert not (folder / "report.html").exists() and not (empty / "report.html").exists()


def test_a_report_that_cannot_be_made_costs_the_search_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = invented_study(tmp_path / "s", 10)
    monkeypatch.setattr(page, "recorded_at_end", lambda *_: 1 / 0)
    said = said_at_end(folder)
    assert said.count("\n") == 2 and "The report was not written (ZeroDivisionError" in said
